"""Offsets found buffer by buffer, in an order of their importance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from singanet.program.liveness import Ints


@dataclass(frozen=True)
class Intervals:
    """What is to be placed: needed from ``first`` to ``last``, both included, ``size`` bytes."""

    first: Ints
    last: Ints
    size: Ints

    def top(self, offsets: Ints) -> int:
        """The bytes of an arena with these offsets."""
        return int((offsets + self.size).max(initial=0))


def place(intervals: Intervals, order: npt.NDArray[Any], tightest: bool) -> Ints:
    """Offsets of ``intervals``, placed one after the other in ``order``.

    Each goes to the lowest gap among those placed before that are needed with it, or, if
    ``tightest``, to the smallest gap that is large enough; else on top of them.
    """
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
        offset = _gap(placed[2].take(meets), floors, size, tightest)
        offsets[which] = offset
        at = int(placed[2, :number].searchsorted(offset, "right"))
        placed[:, at + 1 : number + 1] = placed[:, at:number]
        placed[:, at] = (start, end, offset, offset + size)
    return offsets


def _gap(lows: Ints, floors: Ints, size: int, tightest: bool) -> int:
    gaps = lows[1:] - floors[:-1]
    wide = (gaps >= size).nonzero()[0]
    if not len(wide):
        return int(floors[-1])
    return int(floors[wide[gaps[wide].argmin()] if tightest else wide[0]])
