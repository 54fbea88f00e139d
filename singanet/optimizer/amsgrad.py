"""Adam whose steps never grow back."""

from __future__ import annotations

import math

from singanet.optimizer.adam import Adam
from singanet.optimizer.hyper import at
from singanet.optimizer.state import ParamState


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
