"""Steps of PCG64 in Python, and where a generator is left: as NumPy's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import transfers


@given(st.integers(0, 2**32), st.integers(1, 10_000))
def test_jumps_and_draws_are_those_of_numpy(seed, steps):
    bits = np.random.PCG64(seed)
    state = bits.state["state"]
    times, plus = transfers._jump(steps, state["inc"])
    reached = (times * state["state"] + plus) % 2**128
    bits.advance(steps - 1)
    drawn = bits.random_raw()
    assert bits.state["state"]["state"] == reached
    assert transfers._drawn(reached) == drawn
