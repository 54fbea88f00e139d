"""Written bytes, and the pages that the system gives for them."""

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.base.kinds import resident_bytes, union

MB = 1 << 20
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple))


@given(RANGES)
def test_a_union_has_the_same_bytes_in_order_and_apart(ranges):
    found = union(ranges)
    bytes_of = [{*range(start, end)} for start, end in ranges]
    assert {b for start, end in found for b in range(start, end)} == set().union(*bytes_of)
    assert all(start < end for start, end in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))


def test_whole_pages_count():
    # Half a page more at each end, but within the array.
    assert resident_bytes(((0, 100_000),), MB) == 102_048
    assert resident_bytes(((200_000, 300_000),), MB) == 104_096
    assert resident_bytes(((0, MB),), MB) == MB
    assert resident_bytes(((0, 5000), (6000, 10_000)), MB) == 12_048
    assert resident_bytes((), 50 * MB) == 0
    assert resident_bytes(((0, MB), (9 * MB, 10 * MB)), 50 * MB) == 2 * MB + 3 * 2048


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux")
def test_the_system_agrees():
    def resident():
        lines = Path("/proc/self/status").read_bytes().split(b"\n")
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"RssAnon"))

    memory = mmap.mmap(-1, 40 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    ranges = ((1_000_000, 3_000_000), (3_500_000, 9_000_000), (30_000_000, 30_000_100))
    array = np.frombuffer(memory, np.uint8)
    before = resident()
    for start, end in ranges:
        array[start:end] = 1
    took = resident() - before
    assert resident_bytes(ranges, 40 * MB) == pytest.approx(took, abs=200_000)
    del array
    memory.close()
