"""Steps of the size of earlier steps."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class Adadelta(ElementWise):
    """v = ρ v + (1 − ρ) g²; d = g √(u + ε) / √(v + ε); u = ρ u + (1 − ρ) d²; w −= lr d.

    Zeiler, 2012, whose rate is 1. State: v and u, two arrays a parameter.
    """

    slots = ("square", "moved")
    hypers = (*ElementWise.hypers, "rho", "epsilon")

    def __init__(
        self,
        lr: Hyper | None = 1.0,
        rho: Hyper = 0.9,
        epsilon: Hyper = 1e-6,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
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
