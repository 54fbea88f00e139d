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

    PyTorch adds its ε to √h instead. State: h, one array a parameter.
    """

    slots = ("square",)
    hypers = (*ElementWise.hypers, "rho", "epsilon")

    def __init__(
        self,
        rho: Hyper = 0.9,
        epsilon: Hyper = 1e-8,
        lr: Hyper | None = None,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        self.rho = checked(type(self).__name__, "rho", rho, 0.0, 1.0)
        self.epsilon = checked(type(self).__name__, "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, at(self.rho, state.step), at(self.epsilon, state.step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, rho, epsilon = n
        square = arrays[0]
        xp.multiply(square, rho, out=square)
        xp.multiply(g, g, out=s)
        xp.multiply(s, 1.0 - rho, out=s)
        xp.add(square, s, out=square)
        xp.add(square, epsilon, out=s)
        xp.sqrt(s, out=s)
        xp.divide(g, s, out=s)
        xp.multiply(s, lr, out=s)
        xp.subtract(w, s, out=w)
