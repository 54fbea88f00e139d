"""Adam whose steps never grow back."""

from __future__ import annotations

import math
from typing import Any

from singanet.optimizer.adam import Adam, descend, moments
from singanet.optimizer.hyper import at
from singanet.optimizer.state import ParamState
from singanet.types import Array


class AMSGrad(Adam):
    """Adam with the largest v so far in place of v (Reddi et al. 2018), in PyTorch's form.

    w −= lr m̂ / (√max(v) / √(1 − β₂ᵗ) + ε), m̂ = m / (1 − β₁ᵗ). State: m, v and the largest v,
    three arrays a parameter.
    """

    slots = ("first", "second", "largest")

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        alpha, beta_1, beta_2, epsilon = super()._scalars(state, rate)
        root = math.sqrt(1.0 - at(self.beta_2, state.step) ** (state.step + 1))
        return alpha, beta_1, beta_2, epsilon * root

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon = n
        first, second, largest = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        xp.maximum(largest, second, out=largest)
        xp.sqrt(largest, out=s)
        descend(xp, w, first, s, alpha, epsilon)
