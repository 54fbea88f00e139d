"""Offsets found as an allocator would, kernel by kernel."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from singanet.program.layout.liveness import Ints
from singanet.program.layout.placing import Intervals


def events(intervals: Intervals) -> tuple[list[int], list[int]]:
    """The numbers of intervals as they begin, larger ones first, and as they end."""
    comes = np.lexsort((-intervals.size, intervals.first))
    goes = np.argsort(intervals.last, kind="stable")
    return comes.tolist(), goes.tolist()


def walk_best_fit(intervals: Intervals) -> Ints:
    """Each takes the smallest free piece that holds it; what is given back joins its neighbours."""
    first, last, sizes = intervals.first.tolist(), intervals.last.tolist(), intervals.size.tolist()
    offsets = [0] * len(sizes)
    free = _FreePieces()
    comes, goes = events(intervals)
    gone = 0
    for which in comes:
        while last[goes[gone]] < first[which]:
            free.give(offsets[goes[gone]], sizes[goes[gone]])
            gone += 1
        offsets[which] = free.take(sizes[which])
    return np.array(offsets, np.int64)


def walk_backwards(intervals: Intervals) -> Ints:
    """`walk_best_fit` from the last kernel to the first."""
    return walk_best_fit(Intervals(-intervals.last, -intervals.first, intervals.size))


class _FreePieces:
    """Free pieces of an arena that grows at its end."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # bytes, start
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._end = 0

    def take(self, size: int) -> int:
        k = bisect_left(self._by_size, (size, -1))
        if k < len(self._by_size):
            length, start = self._by_size[k]
            self._drop(start, start + length)
            if length > size:
                self._keep(start + size, start + length)
            return start
        start = self._start_of.get(self._end, self._end)
        if start < self._end:
            self._drop(start, self._end)
        self._end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        end = start + size
        if end in self._end_of:
            further = self._end_of[end]
            self._drop(end, further)
            end = further
        if start in self._start_of:
            before = self._start_of[start]
            self._drop(before, start)
            start = before
        self._keep(start, end)

    def _keep(self, start: int, end: int) -> None:
        insort(self._by_size, (end - start, start))
        self._end_of[start], self._start_of[end] = end, start

    def _drop(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        del self._end_of[start], self._start_of[end]
