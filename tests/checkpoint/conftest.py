"""Memory, as the tests of this room measure it."""

from __future__ import annotations

import tracemalloc

import pytest


@pytest.fixture
def peak():
    """Most bytes that Python and NumPy held above what they held at the last call."""
    tracemalloc.start()
    before = [0]

    def since_last():
        now, highest = tracemalloc.get_traced_memory()
        found = highest - before[0]
        before[0] = now
        tracemalloc.reset_peak()
        return found

    yield since_last
    tracemalloc.stop()
