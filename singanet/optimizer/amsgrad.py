"""Adam whose steps never grow back."""

from __future__ import annotations

from singanet.optimizer.adam import Adam


class AMSGrad(Adam):
    """`Adam` with the largest v so far in place of v (Reddi et al. 2018), before its correction.

    State: m, v and the largest v, three arrays a parameter.
    """

    slots = ("first", "second", "largest")
    epsilon_after_correction = True
