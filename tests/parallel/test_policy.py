"""Policies against plain references that go through one line after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.parallel.cached_rows import POLICIES

WORTH = {
    "lru": lambda uses, last: (0, last),
    "lfu": lambda uses, last: (uses, last),
    "lfuopt": lambda uses, last: None if uses >= 10 else (uses, last),
}


class Reference:
    """A cache as a dict from key to [line, uses, last use]."""

    def __init__(self, lines, worth):
        self.free, self.worth = list(range(lines)), worth
        self.known, self.turn = {}, 0

    def batch(self, keys):
        hits = [key for key in keys if key in self.known]
        missing = [key for key in keys if key not in self.known]
        self.use(hits)
        lines = [self.free.pop(0) for _ in missing[: len(self.free)]]
        while len(lines) < len(missing):
            worth = {k: self.worth(n, t) for k, (_, n, t) in self.known.items() if k not in hits}
            worth = {k: w for k, w in worth.items() if w is not None}
            if not worth:
                break
            lines.append(self.known.pop(min(worth, key=worth.get))[0])
        entered = missing[: len(lines)]
        self.known.update({k: [line, 0, 0] for k, line in zip(entered, lines, strict=True)})
        self.use(entered)

    def use(self, keys):
        for key in keys:
            self.known[key][1:] = self.known[key][1] + 1, self.turn
            self.turn += 1

    def lines(self):
        return {line: key for key, (line, _, _) in self.known.items()}


@pytest.mark.parametrize("name", POLICIES)
@given(
    lines=st.integers(1, 9),
    batches=st.lists(st.lists(st.integers(0, 15), unique=True, max_size=12), max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_lines_hold_the_rows_of_a_plain_reference(name, lines, batches):
    policy, reference = POLICIES[name](lines), Reference(lines, WORTH[name])
    row_of = {}
    for batch in batches:
        line_of = {row: line for line, row in row_of.items()}
        hits = np.array([line_of[row] for row in batch if row in line_of], np.int64)
        missing = [row for row in batch if row not in line_of]
        policy.use(hits)
        entered = policy.make_room(len(missing), hits)
        policy.use(entered)
        row_of.update(zip(entered.tolist(), missing[: len(entered)], strict=True))
        reference.batch(batch)
        assert row_of == reference.lines()


def test_lines_that_were_used_ten_times_stay():
    policy = POLICIES["lfuopt"](3)
    lines = policy.make_room(3, np.empty(0, np.int64))
    for _ in range(10):
        policy.use(lines)
    assert len(policy.make_room(2, np.empty(0, np.int64))) == 0


def test_candidates_are_sought_once_in_many_evictions():
    policy = POLICIES["lru"](8000)
    nobody = np.empty(0, np.int64)
    policy.use(policy.make_room(8000, nobody))
    sought = []
    seek = policy._seek
    policy._seek = lambda count: (sought.append(count), seek(count))
    order = [int(line) for _ in range(80) for line in _entered(policy, 50, nobody)]
    assert order == list(range(4000))
    assert len(sought) <= 5


def _entered(policy, count, busy):
    lines = policy.make_room(count, busy)
    policy.use(lines)
    return lines
