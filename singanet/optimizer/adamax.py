"""Adam by the largest gradient instead of the mean square."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.adam import Adam
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper, at
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class Adamax(Adam):
    """m as in Adam; u = max(β₂ u, |g|); w −= lr m / ((1 − β₁ᵗ) (u + ε)), Keras' form.

    With ``epsilon_in_norm``, as in PyTorch, u = max(β₂ u, |g| + ε), and the divisor is u alone.
    Section 7 of Kingma and Ba, 2015. State: m and u, two arrays a parameter.
    """

    slots = ("first", "norm")
    _always_written = ("epsilon_in_norm",)
    epsilon_in_norm = True

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        epsilon_in_norm: bool = False,
    ) -> None:
        super().__init__(lr, beta_1, beta_2, epsilon, weight_decay, regularizer, constraint)
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
