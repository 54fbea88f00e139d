"""SGD, and rules that scale the rate of each element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singanet.errors import ArgumentError, brief
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.optimizer import Shared
from singanet.optimizer.state import ParamState
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SGD(ElementWise):
    """w −= lr g; with momentum μ: h = μ h + lr g, w −= h (SINGA's form).

    At a constant rate the step is the same as in PyTorch. If the rate changes, earlier gradients
    in h keep their earlier rate. State: h, one array a parameter, none without momentum.

    Args:
        learning_rate: A number or schedule (default in PyTorch: 0.001).
        momentum: μ in [0, 1), a number or schedule; None is 0.
        nesterov: If True, the step is w −= μ h + lr g.
        dampening: d in [0, 1): from the second step on, h grows by (1 − d) lr g, as in PyTorch.
        each_use: If True, a parameter of several layers, such as an embedding table that the head
            shares, is updated by the gradient of each layer in turn if the other layers look up
            rows of it. The result is the same to rounding, and no gradient waits for another.
            It needs an optimizer without momentum, decay, constraint or stages around it, and
            parameters in memory.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.SGD(learning_rate=0.1, momentum=0.9).apply(0, g, w, "w").round(4)
        array([0.9 , 1.05])
    """

    hypers = (*ElementWise.hypers, "momentum", "dampening")
    _only_with_rate = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.01,
        momentum: Hyper | None = None,
        *,
        nesterov: bool = False,
        dampening: Hyper = 0.0,
        each_use: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.momentum = checked(type(self).__name__, "momentum", momentum or 0.0, 0.0, 1.0)
        self.nesterov = bool(nesterov)
        if self.momentum == 0.0 and nesterov:
            raise ArgumentError(
                type(self).__name__,
                expected="a momentum above 0 with nesterov=True",
                received=f"momentum={momentum!r}",
                advice="0.9 is usual",
            )
        self.dampening = checked(type(self).__name__, "dampening", dampening, 0.0, 1.0)
        if self.dampening != 0.0 and (nesterov or self.momentum == 0.0):
            raise ArgumentError(
                f"{type(self).__name__}(dampening=)",
                expected="a momentum above 0, without nesterov=True",
                received=f"momentum={momentum!r}, nesterov={nesterov}",
                advice="omit dampening",
            )
        self.each_use = bool(each_use)
        if self.each_use and (
            self.momentum != 0.0 or self.weight_decay or self.regularizer or self.constraint
        ):
            raise ArgumentError(
                f"{type(self).__name__}(each_use=)",
                expected="neither momentum nor decay nor a constraint: they need the sum",
                received=brief(self),
                advice="omit each_use",
            )
        if self.momentum != 0.0:
            self.slots = ("momentum",)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        if self.momentum == 0.0:
            return rate, 0.0
        step = state.step // self.every
        if step and self.dampening != 0.0:
            rate *= 1.0 - at(self.dampening, step)
        return rate, at(self.momentum, step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, momentum = n
        xp.multiply(g, lr, out=s)
        if not arrays:
            xp.subtract(w, s, out=w)
            return
        h = arrays[0]
        xp.multiply(h, momentum, out=h)
        xp.add(h, s, out=h)
        if self.nesterov:
            xp.subtract(w, s, out=w)
            xp.multiply(h, momentum, out=s)
            xp.subtract(w, s, out=w)
        else:
            xp.subtract(w, h, out=w)


class Nesterov(SGD):
    """h' = μ h + lr g, w −= (1 + μ) h' − μ h (SINGA's form), which is w −= μ h' + lr g.

    At a constant rate it is PyTorch's SGD with ``nesterov=True``. State: h, one array a parameter.

    Args:
        learning_rate: A number or schedule.
        momentum: μ in (0, 1), a number or schedule.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.Nesterov(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.81 , 1.095])
    """

    def __init__(
        self,
        learning_rate: Hyper | None = 0.01,
        momentum: Hyper = 0.9,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov=True, **shared)


class AdaGrad(ElementWise):
    """h += g²; w −= lr g / √(h + ε) (SINGA's form; Duchi et al. 2011).

    PyTorch adds its ε to √h instead. h starts at 0, as in PyTorch (Keras: 0.1). State: h, one
    array a parameter.

    Args:
        learning_rate: A number or schedule (default in Keras: 0.001).
        epsilon: ε, a number or schedule.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.AdaGrad(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("square",)
    hypers = (*ElementWise.hypers, "epsilon")

    def __init__(
        self,
        learning_rate: Hyper | None = 0.01,
        epsilon: Hyper = 1e-8,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.epsilon = checked(type(self).__name__, "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, at(self.epsilon, state.step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, epsilon = n
        square = arrays[0]
        xp.multiply(g, g, out=s)
        xp.add(square, s, out=square)
        xp.add(square, epsilon, out=s)
        xp.sqrt(s, out=s)
        xp.divide(g, s, out=s)
        xp.multiply(s, lr, out=s)
        xp.subtract(w, s, out=w)


class Adadelta(ElementWise):
    """v = ρ v + (1 − ρ) g²; d = g √(u + ε) / √(v + ε); u = ρ u + (1 − ρ) d²; w −= lr d.

    Zeiler, 2012. State: v and u, two arrays a parameter.

    Args:
        learning_rate: A number or schedule; 1 in the paper (default in Keras: 0.001).
        rho: ρ in [0, 1), a number or schedule (default in Keras: 0.95).
        epsilon: ε, a number or schedule (default in Keras: 1e-7).

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.Adadelta(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9997, 1.0003])
    """

    slots = ("square", "moved")
    hypers = (*ElementWise.hypers, "rho", "epsilon")

    def __init__(
        self,
        learning_rate: Hyper | None = 1.0,
        rho: Hyper = 0.9,
        epsilon: Hyper = 1e-6,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.rho = checked("Adadelta", "rho", rho, 0.0, 1.0)
        self.epsilon = checked("Adadelta", "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, at(self.rho, state.step), at(self.epsilon, state.step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, rho, epsilon = n
        square, moved = arrays
        xp.multiply(square, rho, out=square)
        xp.multiply(g, g, out=s)
        xp.multiply(s, 1.0 - rho, out=s)
        xp.add(square, s, out=square)
        xp.add(moved, epsilon, out=s)
        xp.divide(s, square + epsilon, out=s)
        xp.sqrt(s, out=s)
        xp.multiply(s, g, out=s)
        xp.multiply(moved, rho, out=moved)
        moved += xp.square(s) * (1.0 - rho)
        xp.multiply(s, lr, out=s)
        xp.subtract(w, s, out=w)


class RMSProp(ElementWise):
    """h = ρ h + (1 − ρ) g²; w −= lr g / √(h + ε) (SINGA's form; Tieleman and Hinton 2012).

    PyTorch adds its ε to √h instead. State: h, one array a parameter, and one more each for
    ``centered`` and ``momentum``.

    Args:
        learning_rate: A number or schedule (default in PyTorch: 0.01).
        rho: ρ in [0, 1), a number or schedule (default in PyTorch: 0.99).
        epsilon: ε, a number or schedule (default in Keras: 1e-7).
        centered: If True, the divisor is √(h − m² + ε), m = ρ m + (1 − ρ) g (Graves 2013).
        momentum: μ in [0, 1), a number or schedule. If it is not 0, the step is w −= b with
            b = μ b + lr g / √(...).

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.RMSProp(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.6838, 1.3162])
    """

    slots: tuple[str, ...] = ("square",)
    hypers = (*ElementWise.hypers, "rho", "epsilon", "momentum")

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        rho: Hyper = 0.9,
        epsilon: Hyper = 1e-8,
        *,
        centered: bool = False,
        momentum: Hyper = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.rho = checked(type(self).__name__, "rho", rho, 0.0, 1.0)
        self.epsilon = checked(type(self).__name__, "epsilon", epsilon)
        self.momentum = checked(type(self).__name__, "momentum", momentum, 0.0, 1.0)
        self.centered = bool(centered)
        self.slots += ("momentum",) * (self.momentum != 0.0) + ("mean",) * self.centered

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step
        return rate, at(self.rho, step), at(self.epsilon, step), at(self.momentum, step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, rho, epsilon, momentum = n
        square, *others = arrays
        xp.multiply(square, rho, out=square)
        xp.multiply(g, g, out=s)
        xp.multiply(s, 1.0 - rho, out=s)
        xp.add(square, s, out=square)
        if self.centered:
            mean = others.pop()
            xp.multiply(mean, rho, out=mean)
            xp.multiply(g, 1.0 - rho, out=s)
            xp.add(mean, s, out=mean)
            xp.multiply(mean, mean, out=s)
            xp.subtract(square, s, out=s)
            # Only rounding makes it negative.
            xp.maximum(s, 0.0, out=s)
            xp.add(s, epsilon, out=s)
        else:
            xp.add(square, epsilon, out=s)
        xp.sqrt(s, out=s)
        xp.divide(g, s, out=s)
        xp.multiply(s, lr, out=s)
        for step in others:
            xp.multiply(step, momentum, out=step)
            s = xp.add(step, s, out=step)
        xp.subtract(w, s, out=w)
