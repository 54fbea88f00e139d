"""Offsets by sharing whole pieces between buffers of like size, MXNet's way."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from singanet.engine.timeline import Ints, Lifetimes
from singanet.program.layout import events


def share_pieces(intervals: Lifetimes, match_range: int = 16) -> Ints:
    """Each takes a free piece between ``1/match_range`` and ``match_range`` times its size.

    One that is large enough is preferred, the smallest of those; else the largest that is too
    small, which grows. Without any a new piece is made. Pieces are never cut; they lie one behind
    the other. The rule is that of MXNet's ``plan_memory.cc``, whose default range is 16.
    """
    first, last, sizes = intervals.first.tolist(), intervals.last.tolist(), intervals.size.tolist()
    pieces: list[int] = []
    piece_of = [0] * len(sizes)
    free: list[tuple[int, int]] = []  # bytes, piece
    comes, goes = events(intervals)
    gone = 0
    for which in comes:
        while last[goes[gone]] < first[which]:
            piece = piece_of[goes[gone]]
            insort(free, (pieces[piece], piece))
            gone += 1
        size = sizes[which]
        k = bisect_left(free, (size, -1))
        if k < len(free) and free[k][0] <= size * match_range:
            _, piece_of[which] = free.pop(k)
        elif k and free[k - 1][0] * match_range >= size:
            _, piece_of[which] = free.pop(k - 1)
            pieces[piece_of[which]] = size
        else:
            piece_of[which] = len(pieces)
            pieces.append(size)
    starts = np.concatenate([[0], np.cumsum(pieces, dtype=np.int64)]).astype(np.int64)
    return starts[np.array(piece_of, np.int64)]
