"""Steps by the sign of a moving mean."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class Lion(ElementWise):
    """w −= lr (sign(β₁ m + (1 − β₁) g) + λ w); m = β₂ m + (1 − β₂) g (Chen et al. 2023).

    λ is ``weight_decay`` times the parameter's ``decay_mult``. Every element moves by lr: a
    tenth of Adam's rate is usual. State: m, one array a parameter.
    """

    slots = ("first",)
    hypers = (*ElementWise.hypers, "beta_1", "beta_2")
    decoupled = True

    def __init__(
        self,
        lr: Hyper | None = 0.0001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.99,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        self.beta_1 = checked(type(self).__name__, "beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = checked(type(self).__name__, "beta_2", beta_2, 0.0, 1.0)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        kept = 1.0 - rate * at(self.weight_decay, state.step) * state.decay_mult
        return rate, at(self.beta_1, state.step), at(self.beta_2, state.step), kept

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, beta_1, beta_2, kept = n
        mean = arrays[0]
        if kept != 1.0:
            xp.multiply(w, kept, out=w)
        # Divided by 1 − β₁, which keeps the sign and needs one scratch array instead of two.
        xp.multiply(mean, beta_1 / (1.0 - beta_1), out=s)
        xp.add(s, g, out=s)
        # Into a new block: NumPy's sign is ten times slower in place.
        xp.multiply(xp.sign(s), lr, out=s)
        xp.subtract(w, s, out=w)
        xp.multiply(mean, beta_2, out=mean)
        xp.multiply(g, 1.0 - beta_2, out=s)
        xp.add(mean, s, out=mean)
