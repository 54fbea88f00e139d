"""Adam with weight decay apart from the gradient."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.adam import Adam
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper, at
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class AdamW(Adam):
    """w −= lr λ w, then `Adam`'s step (Loshchilov and Hutter 2019).

    λ is ``weight_decay`` times the parameter's ``decay_mult``. ``amsgrad`` takes the largest v so
    far, as `AMSGrad` does. State: m and v, two arrays; with ``amsgrad`` a third.
    """

    decoupled = True
    epsilon_after_correction = True

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = 0.01,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        amsgrad: bool = False,
        epsilon_after_correction: bool = False,
    ) -> None:
        super().__init__(
            lr, beta_1, beta_2, epsilon, weight_decay, regularizer, constraint,
            epsilon_after_correction,
        )  # fmt: skip
        if amsgrad:
            self.slots = ("first", "second", "largest")

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        kept = 1.0 - rate * at(self.weight_decay, state.step) * state.decay_mult
        return *super()._scalars(state, rate), kept

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        if n[4] != 1.0:
            xp.multiply(w, n[4], out=w)
        super()._rule(xp, w, g, arrays, s, *n[:4])
