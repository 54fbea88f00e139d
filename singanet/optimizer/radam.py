"""Adam without the variance of its first steps."""

from __future__ import annotations

import math
from typing import Any

from singanet.optimizer.adam import Adam, descend, epsilon_beside, moments
from singanet.optimizer.hyper import at
from singanet.optimizer.state import ParamState
from singanet.types import Array


class RAdam(Adam):
    """w −= r α m / (√v + ε), or lr m̂ while v says too little (Liu et al. 2020; PyTorch's form).

    `Adam` explains α, m̂ and ``epsilon_after_correction``. With ρ∞ = 2 / (1 − β₂) − 1 and
    ρ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ), v counts where ρ > 5, and
    r² = (ρ − 4)(ρ − 2) ρ∞ / ((ρ∞ − 4)(ρ∞ − 2) ρ). State: m and v, two arrays a parameter.
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
        return alpha, beta_1, beta_2, 1.0, epsilon_beside(self, step, math.sqrt(1.0 - power))

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, counts, epsilon = n
        first, second = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        xp.sqrt(second, out=s)
        xp.multiply(s, counts, out=s)
        descend(xp, w, first, s, alpha, epsilon)
