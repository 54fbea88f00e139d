"""Division by a moving root mean square."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class RMSProp(ElementWise):
    """h = ρ h + (1 − ρ) g²; w −= lr g / √(h + ε) (SINGA's form; Tieleman and Hinton 2012).

    PyTorch adds its ε to √h instead. ``centered`` divides by √(h − m² + ε), m = ρ m + (1 − ρ) g
    (Graves 2013); ``momentum`` μ takes the step w −= b, b = μ b + lr g / √…, in its place. State:
    h, one array a parameter, and one more for each of the two.
    """

    slots: tuple[str, ...] = ("square",)
    hypers = (*ElementWise.hypers, "rho", "epsilon", "momentum")

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        rho: Hyper = 0.9,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        centered: bool = False,
        momentum: Hyper = 0.0,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
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
            # It is no less than 0 but for rounding.
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
