"""Offsets found buffer by buffer, in an order of their importance."""

from __future__ import annotations

from bisect import insort
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.program.layout.liveness import Ints

_FEW = 1000
"""Up to so many a loop in Python takes less time than calls of NumPy: a ninth of it for fifty."""


class Intervals(NamedTuple):
    """Buffers to be placed: needed from ``first`` to ``last``, both included, of ``size`` bytes."""

    first: Ints
    last: Ints
    size: Ints

    def top(self, offsets: Ints) -> int:
        """The bytes of an arena with these offsets."""
        return int((offsets + self.size).max(initial=0))


def place(intervals: Intervals, order: npt.NDArray[Any]) -> Ints:
    """Offsets of ``intervals``, placed one after the other in ``order``.

    Each goes to the lowest gap among those placed before that are needed with it, or on top.
    """
    return (place_many if len(order) > _FEW else place_few)(intervals, order)


def place_few(intervals: Intervals, order: npt.NDArray[Any]) -> Ints:
    """`place`, by a loop over those placed before, up to the gap."""
    first, last = intervals.first.tolist(), intervals.last.tolist()
    sizes = intervals.size.tolist()
    offsets = [0] * len(sizes)
    placed: list[tuple[int, int, int, int]] = []
    for which in order.tolist():
        start, end, size, floor = first[which], last[which], sizes[which], 0
        for offset, top, begins, ends in placed:
            if begins <= end and start <= ends:
                if offset - floor >= size:
                    break
                if top > floor:
                    floor = top
        offsets[which] = floor
        insort(placed, (floor, floor + size, start, end))
    return np.array(offsets, np.int64)


def place_many(intervals: Intervals, order: npt.NDArray[Any]) -> Ints:
    """`place`, by NumPy: a few calls for each."""
    count = len(order)
    offsets = np.zeros(count, np.int64)
    # Rows: first, last, offset, end; sorted by offset. In front an empty one that is always needed,
    # so that gaps have a floor.
    placed = np.empty((4, count + 1), np.int64)
    placed[:, 0] = (-2, np.iinfo(np.int64).max, 0, 0)
    first, last = intervals.first.tolist(), intervals.last.tolist()
    sizes = intervals.size.tolist()
    for number, which in enumerate(order.tolist(), 1):
        start, end, size = first[which], last[which], sizes[which]
        meets = ((placed[0, :number] <= end) & (placed[1, :number] >= start)).nonzero()[0]
        floors = np.maximum.accumulate(placed[3].take(meets))
        offset = _gap(placed[2].take(meets), floors, size)
        offsets[which] = offset
        at = int(placed[2, :number].searchsorted(offset, "right"))
        placed[:, at + 1 : number + 1] = placed[:, at:number]
        placed[:, at] = (start, end, offset, offset + size)
    return offsets


def _gap(lows: Ints, floors: Ints, size: int) -> int:
    fits = lows[1:] - floors[:-1] >= size
    lowest = int(fits.argmax()) if len(fits) else 0
    return int(floors[lowest if len(fits) and fits[lowest] else -1])


def pressure(intervals: Intervals) -> Ints:
    """For each the most bytes that are needed at one kernel while it is needed."""
    first, last = intervals.first - intervals.first.min(), intervals.last - intervals.first.min()
    change = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(change, first, intervals.size)
    np.add.at(change, last + 1, -intervals.size)
    # most[k] is the largest among the 2 ** level kernels from k on; two such cover a lifetime.
    most, level = np.cumsum(change), 0
    levels = np.frexp(last - first + 1)[1] - 1
    found = np.empty(len(first), np.int64)
    while True:
        here = levels == level
        found[here] = np.maximum(most[first[here]], most[last[here] + 1 - (1 << level)])
        if level >= levels.max():
            return found
        most = np.maximum(most[: -(1 << level)], most[1 << level :])
        level += 1
