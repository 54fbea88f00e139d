"""Offsets found buffer by buffer: the lowest gap among what is needed at the same time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singanet.program.layout import Intervals, place_few, place_many

LIVES = st.lists(
    st.tuples(st.integers(-1, 12), st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=30
)


def lowest(intervals, order):
    """By the definition: the first byte from which none is another's at the same time."""
    offsets = {}
    for which in order:
        taken = {
            byte
            for other, at in offsets.items()
            if intervals.first[other] <= intervals.last[which]
            and intervals.first[which] <= intervals.last[other]
            for byte in range(at, at + intervals.size[other])
        }
        size = intervals.size[which]
        offset = 0
        while not taken.isdisjoint(range(offset, offset + size)):
            offset += 1
        offsets[which] = offset
    return [offsets[which] for which in range(len(order))]


@given(LIVES, st.randoms(use_true_random=False))
def test_few_and_many_go_to_the_lowest_gap(lives, random):
    first, spans, sizes = (np.array(part, np.int64) for part in zip(*lives, strict=True))
    intervals = Intervals(first, first + spans, sizes)
    order = list(range(len(lives)))
    random.shuffle(order)
    wanted = lowest(intervals, order)
    assert place_few(intervals, np.array(order)).tolist() == wanted
    assert place_many(intervals, np.array(order)).tolist() == wanted
