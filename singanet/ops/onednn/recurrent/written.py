"""Which bytes of its memory a recurrent kernel of oneDNN's writes: it asks for far more.

Its notes have room for states and gradients of states, most of which it finds elsewhere. Where
what lies differs from version to version, so it is seen: short sequences run on marked memory,
and longer ones lie alike, each part as much longer as its steps are more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from singanet.base.written import PAGE, Ranges, union
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.recurrent.plans import Sizes, backward, train
from singanet.ops.onednn.runtime import Build, Runtime
from singanet.types import Array

_PART = 32
"""Of the steps one in 32 is run, and twice as many: no more memory than planning may take."""

_FEWEST = 3
"""Fewer steps, of a part, tell nothing."""

_MARK = np.uint32(0x7FA51234)
"""No float that arithmetic makes: its bits are of a signalling NaN."""


def written(
    ops: OneDnnBase, build: Build, key: tuple[Any, ...], passes: int = 1
) -> Mapping[int, Ranges]:
    """The byte ranges that a plan writes, for each operand that it writes in part.

    The scratch memory has the number after the operands'. Only recurrent plans in training are
    known. ``passes`` is as for `OneDnnBase.runs`.
    """
    runtime = ops.runtime()
    if runtime is None or build not in (train, backward):
        return {}
    return _written(runtime, Sizes(*key), passes)[build is backward]


@lru_cache(maxsize=64)
def _written(
    runtime: Runtime, sizes: Sizes, passes: int
) -> tuple[dict[int, Ranges], dict[int, Ranges]]:
    """For `train` and `backward`."""
    short = max(_FEWEST, sizes.steps // _PART)
    longer = 2 * short
    work = sizes.steps * sizes.n * sizes.size * passes
    plans = [runtime.plan(build, sizes, work) for build in (train, backward)]
    if longer > sizes.steps // 2 or None in plans:
        return {}, {}
    seen = [_seen(runtime, sizes._replace(steps=steps), work) for steps in (short, longer)]
    made: tuple[dict[int, Ranges], dict[int, Ranges]] = {}, {}
    for which, plan in enumerate(plans):
        assert plan is not None
        room = [*plan.sizes, plan.scratch]
        for number in seen[0][which]:
            first, second = (found[which][number] for found in seen)
            grown = _grown(first, second, (sizes.steps - short) / (longer - short))
            end_of = room[number]
            made[which][number] = tuple((a, min(b, end_of)) for a, b in grown if a < end_of)
    return made


def _seen(runtime: Runtime, sizes: Sizes, work: int) -> tuple[dict[int, Array], dict[int, Array]]:
    """What a run writes of notes and scratch: whether each word of four bytes."""
    forward, back = (runtime.built(build, sizes, work) for build in (train, backward))
    assert forward is not None
    assert back is not None
    note, note_back = len(forward.sizes) - 1, _note_of(sizes)
    notes = np.full(-(-forward.sizes[note] // 4), _MARK)
    found: list[dict[int, Array]] = []
    for plan, number in ((forward, note), (back, note_back)):
        given = [np.zeros(size, np.uint8) for size in plan.sizes]
        scratch = np.full((plan.scratch + PAGE) // 4, _MARK)
        before: Any = _MARK if not found else notes.copy()
        addresses = [array.ctypes.data for array in given]
        addresses[number] = notes.ctypes.data
        start = -scratch.ctypes.data % PAGE
        plan.run(addresses, scratch.ctypes.data + start)
        of_scratch = scratch[start // 4 : start // 4 + plan.scratch // 4] != _MARK
        found.append({number: notes != before, len(plan.sizes): of_scratch})
    return found[0], found[1]


def _note_of(sizes: Sizes) -> int:
    """The number of the notes among the operands of `backward`."""
    inputs = 1 + sizes.states + 3
    return inputs + 1 + sizes.states


def _grown(first: Array, second: Array, factor: float) -> Ranges:
    """The ranges of as many more steps, by what of fewer and of some more is written.

    Words near each other are one range, such as the rows of a matrix with room behind each.
    """
    gap = PAGE
    while True:
        pair = [_rows(_ranges(mask, gap)) for mask in (first, second)]
        if len(pair[0]) == len(pair[1]):
            break
        gap *= 2
    grown = (pair[0] + (pair[1] - pair[0]) * factor).astype(np.int64).tolist()
    return union(
        (start + k * apart, start + k * apart + length)
        for start, length, apart, count in grown
        for k in range(count)
    )


def _rows(ranges: Array) -> Array:
    """Ranges as rows: start and length of the first, how far it is to the next, and how many.

    A step may write a range of its own: there are as many of one length, equally far apart.
    """
    starts, lengths = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    rows: list[tuple[float, float, float, int]] = []
    k = 0
    while k < len(ranges):
        count, apart = 1, 0.0
        if k + 1 < len(ranges):
            apart = starts[k + 1] - starts[k]
            even = starts[k:] == starts[k] + apart * np.arange(len(starts) - k)
            alike = even & (lengths[k:] == lengths[k])
            count = len(alike) if alike.all() else int(alike.argmin())
        if count < _FEWEST:
            count, apart = 1, 0.0
        rows.append((starts[k], lengths[k], apart, count))
        k += count
    return np.array(rows).reshape(-1, 4)


def _ranges(mask: Array, gap: int) -> Array:
    """Pairs of bytes between which ``mask`` has words that are no more than ``gap`` apart."""
    if not len(mask):
        return np.zeros((0, 2))
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    edges = np.r_[[0] * bool(mask[0]), edges, [len(mask)] * bool(mask[-1])].astype(np.int64)
    if not len(edges):
        return np.zeros((0, 2))
    starts, ends = edges[::2], edges[1::2]
    # Between the last word before a gap and the first behind it: as far apart as their numbers.
    last = np.flatnonzero(starts[1:] - ends[:-1] + 1 > gap // 4)
    starts, ends = starts[np.r_[0, last + 1]], ends[np.r_[last, len(ends) - 1]]
    return 4.0 * np.stack([starts, ends], axis=1)
