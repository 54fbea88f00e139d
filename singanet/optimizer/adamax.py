"""Adam by the largest gradient instead of the mean square."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.adam import Adam
from singanet.optimizer.hyper import at
from singanet.optimizer.state import ParamState
from singanet.types import Array


class Adamax(Adam):
    """m as in Adam; u = max(β₂ u, |g| + ε); w −= lr m / ((1 − β₁ᵗ) u), PyTorch's form.

    Section 7 of Kingma and Ba, 2015. State: m and u, two arrays a parameter.
    """

    slots = ("first", "norm")

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1 = at(self.beta_1, step)
        alpha = rate / (1.0 - beta_1 ** (step + 1))
        return alpha, beta_1, at(self.beta_2, step), at(self.epsilon, step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon = n
        first, norm = arrays
        xp.multiply(first, beta_1, out=first)
        xp.multiply(g, 1.0 - beta_1, out=s)
        xp.add(first, s, out=first)
        xp.multiply(norm, beta_2, out=norm)
        xp.absolute(g, out=s)
        xp.add(s, epsilon, out=s)
        xp.maximum(norm, s, out=norm)
        xp.divide(first, norm, out=s)
        xp.multiply(s, alpha, out=s)
        xp.subtract(w, s, out=w)
