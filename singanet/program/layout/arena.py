"""One piece of memory for all buffers of a program, with planned offsets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.in_place import Pair, shared_memory
from singanet.program.layout.liveness import Ints
from singanet.program.layout.placing import Intervals, place, pressure
from singanet.program.layout.walking import walk_backwards, walk_best_fit

ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector of a CPU."""

_NEAR = ((1 << 12, 1.0), (1 << 14, 1.005), (math.inf, 1.15))
"""Up to how many buffers a layout is good enough that is so far above the bound.

What places buffer by buffer takes time with the square of their number. Above 16,384 what an
allocator finds is some thousandths above the bound as well.
"""

Strategy = Callable[[Intervals], Ints]


class Layout(NamedTuple):
    """Where each buffer lies in an arena of ``nbytes``; sizes are rounded up to `ALIGNMENT`.

    ``offsets`` has None for what lies outside: parameters and constants. ``lower_bound`` is the
    most that is needed at one kernel, less than which no arena can have; ``unplanned_bytes`` what
    buffers take that share nothing. ``in_place`` lists the pairs (read, written) that share their
    memory; ``strategy`` names what found the offsets.
    """

    offsets: tuple[int | None, ...]
    nbytes: int
    lower_bound: int
    unplanned_bytes: int
    in_place: tuple[Pair, ...]
    strategy: str


def plan_arena(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    tried: Mapping[str, Strategy] | None = None,
) -> Layout:
    """The smallest layout that a few strategies find for ``kernels`` run in the order given.

    ``tried`` are strategies by name in the place of `STRATEGIES`. Errors: a kernel with an
    unknown buffer, or one that reads what nothing wrote yet.
    """
    memory, sizes = shared_memory(kernels, buffers), rounded_sizes(buffers)
    lives, holder = memory.lives, memory.holder
    needed = memory.holds & (lives.first <= lives.last) & (sizes > 0)
    lower_bound = int(memory.live_bytes(sizes).max(initial=0))
    chosen = needed.nonzero()[0]
    intervals = Intervals(lives.first[chosen], lives.last[chosen], sizes[chosen])
    found, nbytes, strategy = smallest(intervals, lower_bound, tried or STRATEGIES)
    offsets = np.zeros(len(buffers), np.int64)
    offsets[chosen] = found
    by_holder = offsets[holder].tolist()
    return Layout(
        offsets=tuple(
            offset if buffer.planned else None
            for offset, buffer in zip(by_holder, buffers, strict=True)
        ),
        nbytes=nbytes,
        lower_bound=lower_bound,
        unplanned_bytes=int(sizes.sum()),
        in_place=tuple(memory.pairs),
        strategy=strategy,
    )


def rounded_sizes(buffers: Sequence[Buffer]) -> Ints:
    """The bytes of each buffer in an arena, 0 for those outside."""
    sizes = np.array([buffer.nbytes if buffer.planned else 0 for buffer in buffers], np.int64)
    return -(-sizes // ALIGNMENT) * ALIGNMENT


def smallest(
    intervals: Intervals, lower_bound: int, tried: Mapping[str, Strategy]
) -> tuple[Ints, int, str]:
    """Offsets, bytes of the arena, name of the strategy; stops at a result near the bound."""
    best, least, name = np.zeros(0, np.int64), 0, "nothing to place"
    if not len(intervals.size):
        return best, least, name
    near = next(part for most, part in _NEAR if len(intervals.size) <= most)
    for title, strategy in tried.items():
        enough = 1.0 if strategy in _QUICK else near
        if len(best) and least <= enough * lower_bound:
            break
        offsets = strategy(intervals)
        top = intervals.top(offsets)
        if not len(best) or top < least:
            best, least, name = offsets, top, title
    return best, least, name


def most_contested(intervals: Intervals) -> Ints:
    """First what is needed when most is needed; of that the longest first."""
    return place(intervals, np.lexsort((-_lengths(intervals), -pressure(intervals))))


def largest(intervals: Intervals) -> Ints:
    """The most bytes first."""
    return place(intervals, np.argsort(-intervals.size, kind="stable"))


_QUICK = (walk_best_fit, walk_backwards)

STRATEGIES: Mapping[str, Strategy] = {
    "best fit, forwards": walk_best_fit,
    "best fit, backwards": walk_backwards,
    "most contested first": most_contested,
    "largest first": largest,
}
"""Quick strategies first."""


def _lengths(intervals: Intervals) -> Ints:
    return intervals.last - intervals.first + 1
