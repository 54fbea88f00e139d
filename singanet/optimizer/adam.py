"""Adam and related rules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.element_wise import ElementWise, decay, prepared
from singanet.optimizer.hyper import Hyper, at, checked, in_type
from singanet.optimizer.optimizer import Shared
from singanet.optimizer.regularization import sum_of_squares
from singanet.optimizer.state import ParamState, ParamUpdate
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Adam(ElementWise):
    """m, v = moving means of g, g²; w −= α m / (√v + ε), α = lr √(1 − β₂ᵗ) / (1 − β₁ᵗ).

    SINGA and Keras use this form, from section 2 of Kingma and Ba (2015): ε is added to √v before
    the bias correction. t counts the updates of each parameter. State: m and v, two arrays a
    parameter, with ``amsgrad`` a third.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule (default in Keras: 1e-7).
        amsgrad: If True, the largest v so far replaces v, as in `AMSGrad`.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch:
            w −= lr m̂ / (√v̂ + ε). The other rules of this module take this argument, too.

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
        >>> singanet.optimizer.Adam(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots: tuple[str, ...] = ("first", "second")
    hypers = (*ElementWise.hypers, "beta_1", "beta_2", "epsilon")
    _always_written = ("epsilon_after_correction",)
    epsilon_after_correction = False

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        amsgrad: bool = False,
        epsilon_after_correction: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.epsilon_after_correction = bool(epsilon_after_correction)
        where, kind = type(self).__name__, type(self)
        if amsgrad and (kind._rule is not Adam._rule or kind._sweep is not Adam._sweep):
            raise ArgumentError(
                f"{where}(amsgrad=)",
                expected="Adam or AdamW",
                received=where,
                advice="omit it",
            )
        if amsgrad:
            self.slots = ("first", "second", "largest")
        self.beta_1 = checked(where, "beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = checked(where, "beta_2", beta_2, 0.0, 1.0)
        self.epsilon = checked(where, "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        alpha = rate * root / (1.0 - beta_1 ** (step + 1))
        return alpha, beta_1, beta_2, epsilon_outside_root(self, step, root)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon = n
        first, second, *largest = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        for top in largest:
            second = xp.maximum(top, second, out=top)
        xp.sqrt(second, out=s)
        descend(xp, w, first, s, alpha, epsilon)


def epsilon_outside_root(rule: Any, step: int, root: float) -> float:
    """Return the ε to add to √v, before the bias correction divides both by ``root``."""
    epsilon = at(rule.epsilon, step)
    return epsilon * root if rule.epsilon_after_correction else epsilon


def moments(
    xp: Any, g: Array, first: Array, second: Array, s: Array, beta_1: float, beta_2: float
) -> None:
    """Update the moving means of g and g² in place; ``s`` is scratch."""
    xp.multiply(first, beta_1, out=first)
    xp.multiply(g, 1.0 - beta_1, out=s)
    xp.add(first, s, out=first)
    xp.multiply(second, beta_2, out=second)
    xp.multiply(g, g, out=s)
    xp.multiply(s, 1.0 - beta_2, out=s)
    xp.add(second, s, out=second)


def descend(xp: Any, w: Array, first: Array, root: Array, alpha: float, epsilon: float) -> None:
    """Compute w −= α m / (root + ε) in place; ``root`` is overwritten."""
    xp.add(root, epsilon, out=root)
    xp.divide(first, root, out=root)
    xp.multiply(root, alpha, out=root)
    xp.subtract(w, root, out=w)


class Adamax(Adam):
    """m as in Adam; u = max(β₂ u, |g|); w −= lr m / ((1 − β₁ᵗ) (u + ε)), Keras' form.

    Section 7 of Kingma and Ba, 2015. State: m and u, two arrays a parameter.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        epsilon_in_norm: If True, u = max(β₂ u, |g| + ε), and the divisor is u, as in PyTorch.

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
        >>> singanet.optimizer.Adamax(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("first", "norm")
    _always_written = ("epsilon_in_norm",)
    epsilon_in_norm = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        epsilon_in_norm: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **shared)
        self.epsilon_in_norm = bool(epsilon_in_norm)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1 = at(self.beta_1, step)
        alpha = rate / (1.0 - beta_1 ** (step + 1))
        epsilon = at(self.epsilon, step)
        apart = (epsilon, 0.0) if self.epsilon_in_norm else (0.0, epsilon)
        return alpha, beta_1, at(self.beta_2, step), *apart

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, inside, beside = n
        first, norm = arrays
        xp.multiply(first, beta_1, out=first)
        xp.multiply(g, 1.0 - beta_1, out=s)
        xp.add(first, s, out=first)
        xp.multiply(norm, beta_2, out=norm)
        xp.absolute(g, out=s)
        xp.add(s, inside, out=s)
        xp.maximum(norm, s, out=norm)
        xp.add(norm, beside, out=s)
        xp.divide(first, s, out=s)
        xp.multiply(s, alpha, out=s)
        xp.subtract(w, s, out=w)


class AdamW(Adam):
    """w −= lr λ w, then `Adam`'s step (Loshchilov and Hutter 2019).

    λ is ``weight_decay``, 0.01 as in PyTorch (Keras: 0.004), times the parameter's ``decay_mult``.
    State: as `Adam`.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        amsgrad: If True, the largest v so far replaces v, as in `AMSGrad`.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0.01 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first, the default; if False, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.AdamW(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.899, 1.099])
    """

    weight_decay = 0.01
    decoupled = True
    epsilon_after_correction = True


class AMSGrad(Adam):
    """`Adam` with the largest v so far in place of v (Reddi et al. 2018), before its correction.

    State: m, v and the largest v, three arrays a parameter.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        amsgrad: It has no effect, since the rule always takes the largest v.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

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
        >>> singanet.optimizer.AMSGrad(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("first", "second", "largest")
    epsilon_after_correction = True


class NAdam(Adam):
    """w −= lr √(1 − β₂ᵗ) (μ' m / (1 − Π μ') + (1 − μ) g / (1 − Π μ)) / (√v + ε), with `Adam`'s ε.

    At step t μ = β₁ (1 − 0.96^(ψ t) / 2), μ' is the μ of step t + 1, and Π is the product over all
    steps so far. Dozat, 2016. State: m and v, two arrays a parameter.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        momentum_decay: ψ, a number or schedule (Keras: 1).
        epsilon_after_correction: If True, the divisor is √v̂ + ε, as in PyTorch and Keras.

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
        >>> singanet.optimizer.NAdam(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.8944, 1.1056])
    """

    hypers = (*Adam.hypers, "momentum_decay")
    epsilon_after_correction = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        momentum_decay: Hyper = 0.004,
        epsilon_after_correction: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        later = epsilon_after_correction
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, epsilon_after_correction=later, **shared
        )
        self.momentum_decay = checked("NAdam", "momentum_decay", momentum_decay)
        # Step and product of the last call: most parameters are at the same step.
        self._product: list[tuple[Hyper, Hyper, int, float]] = []

    def _momentum(self, step: int) -> float:
        decay: float = 0.96 ** (at(self.momentum_decay, step) * (step + 1))
        return at(self.beta_1, step) * (1.0 - 0.5 * decay)

    def _product_to(self, step: int) -> float:
        """Return the product of the momenta of all steps up to ``step``."""
        begun, product = 0, 1.0
        for beta, psi, done, value in self._product:
            if beta == self.beta_1 and psi == self.momentum_decay and done <= step + 1:
                begun, product = done, value
        for each in range(begun, step + 1):
            product *= self._momentum(each)
        self._product[:] = [(self.beta_1, self.momentum_decay, step + 1, product)]
        return product

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        now, after, product = self._momentum(step), self._momentum(step + 1), self._product_to(step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        fresh = rate * root * (1.0 - now) / (1.0 - product)
        momentum_rate = rate * root * after / (1.0 - product * after)
        return fresh, momentum_rate, beta_1, beta_2, epsilon_outside_root(self, step, root)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        fresh, momentum_rate, beta_1, beta_2, epsilon = n
        first, second = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        ahead = xp.multiply(first, momentum_rate)
        xp.multiply(g, fresh, out=s)
        xp.add(ahead, s, out=ahead)
        xp.sqrt(second, out=s)
        xp.add(s, epsilon, out=s)
        xp.divide(ahead, s, out=s)
        xp.subtract(w, s, out=w)


class RAdam(Adam):
    """w −= r α m / (√v + ε) if ρ > 5, else w −= lr m̂ (Liu et al. 2020; PyTorch's form).

    ρ∞ = 2 / (1 − β₂) − 1, ρ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ), and
    r² = (ρ − 4)(ρ − 2) ρ∞ / ((ρ∞ − 4)(ρ∞ − 2) ρ). `Adam` explains α and m̂; PyTorch's RAdam has
    ``epsilon_after_correction=False``. State: m and v, two arrays a parameter.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        amsgrad: Only False.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

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
        >>> singanet.optimizer.RAdam(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9 , 1.05])
    """

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        alpha, power = rate / (1.0 - beta_1 ** (step + 1)), beta_2 ** (step + 1)
        most = 2.0 / (1.0 - beta_2) - 1.0
        length = most - 2.0 * (step + 1) * power / (1.0 - power)
        if length <= 5.0:
            # The divisor is 1.
            return alpha, beta_1, beta_2, 0.0, 1.0
        spread = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
        alpha *= math.sqrt(spread * (1.0 - power))
        return alpha, beta_1, beta_2, 1.0, epsilon_outside_root(self, step, math.sqrt(1.0 - power))

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, counts, epsilon = n
        first, second = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        xp.sqrt(second, out=s)
        xp.multiply(s, counts, out=s)
        descend(xp, w, first, s, alpha, epsilon)


class LAMB(Adam):
    """r = α m / (√v + ε) + λ w; w −= lr (‖w‖ / ‖r‖) r (You et al. 2020), for large batches.

    α is `Adam`'s for lr = 1. The ratio is 1 if either norm is 0. The norms are of the whole
    parameter, or of the rows that a row-sparse gradient names. λ is ``weight_decay``, 0.01 by
    default (Keras: none), times ``decay_mult``. If ``decoupled`` is True, as in Keras, the value
    decays before the step, and if it is None, λ w is part of r. The direction is computed twice,
    once for its norm, and needs no array of the parameter's size. State: m and v.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule (default in Keras: 1e-7).
        epsilon_after_correction: If True, the quotient is m̂ / (√v̂ + ε), as in the paper and
            in Keras.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0.01 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): True: w −= lr λ w comes first; None, the default: λ w is part of r;
            False: λ w is added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.LAMB(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.899, 1.099])
    """

    weight_decay = 0.01
    decoupled = None
    epsilon_after_correction = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-6,
        *,
        epsilon_after_correction: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        later = epsilon_after_correction
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, epsilon_after_correction=later, **shared
        )

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        within = self.decoupled is None
        share = at(self.weight_decay, step) * state.decay_mult if within else 0.0
        correction = root / (1.0 - beta_1 ** (step + 1))
        return rate, beta_1, beta_2, epsilon_outside_root(self, step, root), correction, share

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _, kept = update
        xp = ops_for(value).xp
        rate, beta_1, beta_2, epsilon, correction, share = scalars
        of_value: Any = 0.0
        of_step: Any = 0.0
        for w, g, (first, second), a, b in self._blocks(xp, value, grad, arrays):
            g = prepared(xp, w, g, update, a, b)
            decay(xp, w, kept)
            moments(xp, g, first, second, b, beta_1, beta_2)
            _direction((xp, w, first, second, a, b), epsilon, correction, share)
            of_value = of_value + sum_of_squares(w)
            of_step = of_step + sum_of_squares(a)
        both = xp.logical_and(of_value != 0.0, of_step != 0.0)
        ratio = xp.sqrt(xp.where(both, of_value / xp.where(both, of_step, 1.0), 1.0))
        pace = in_type(xp, rate * ratio, value.dtype)
        for w, _, (first, second), a, b in self._blocks(xp, value, grad, arrays):
            _direction((xp, w, first, second, a, b), epsilon, correction, share)
            xp.multiply(a, pace, out=a)
            xp.subtract(w, a, out=w)


def _direction(
    block: tuple[Any, Array, Array, Array, Array, Array],
    epsilon: float,
    correction: float,
    share: float,
) -> None:
    """Compute r into the first scratch array of ``block``; the second is overwritten."""
    xp, w, first, second, a, b = block
    xp.sqrt(second, out=a)
    xp.add(a, epsilon, out=a)
    xp.divide(first, a, out=a)
    xp.multiply(a, correction, out=a)
    if share != 0.0:
        xp.multiply(w, share, out=b)
        xp.add(a, b, out=a)


class Lion(ElementWise):
    """w −= lr (sign(β₁ m + (1 − β₁) g) + λ w); m = β₂ m + (1 − β₂) g (Chen et al. 2023).

    λ is ``weight_decay`` times the parameter's ``decay_mult``. State: m, one array a parameter.

    Args:
        learning_rate: A number or schedule (default in Keras: 0.001). Every element moves by lr,
            so that a tenth of Adam's rate is usual.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first, the default; if False, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.Lion(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("first",)
    hypers = (*ElementWise.hypers, "beta_1", "beta_2")
    decoupled = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.0001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.99,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.beta_1 = checked(type(self).__name__, "beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = checked(type(self).__name__, "beta_2", beta_2, 0.0, 1.0)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, at(self.beta_1, state.step), at(self.beta_2, state.step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, beta_1, beta_2 = n
        mean = arrays[0]
        # Divided by 1 − β₁, which does not change the sign and saves a scratch array.
        xp.multiply(mean, beta_1 / (1.0 - beta_1), out=s)
        xp.add(s, g, out=s)
        # Into a new block: NumPy's sign is ten times slower in place.
        xp.multiply(xp.sign(s), lr, out=s)
        xp.subtract(w, s, out=w)
        xp.multiply(mean, beta_2, out=mean)
        xp.multiply(g, 1.0 - beta_2, out=s)
        xp.add(mean, s, out=mean)
