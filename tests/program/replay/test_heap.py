"""Memory given back, or left alone where the C library cannot."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

from singanet.program.replay import heap


@pytest.fixture(autouse=True)
def _looked_up_anew():
    heap._malloc_trim.cache_clear()
    yield
    heap._malloc_trim.cache_clear()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_freed_blocks_leave_the_process():
    if heap._malloc_trim() is None:
        pytest.skip("the C library has no malloc_trim")
    # Small blocks come from the heap; the last one keeps its end from being given back by itself.
    blocks = [np.ones(8192) for _ in range(2000)]
    end = np.ones(8192)
    before = resident()
    del blocks
    heap.trim()
    assert end.sum() == 8192
    assert before - resident() > 100 << 20


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_libraries_are_left_alone(monkeypatch, error):
    def refused(name):
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", refused)
    heap.trim()
