"""Compute attention of many queries by functions compiled with LLVM.

Products, softmax and products of a block of scores are one function, without a call in between.
Keys and values are read where they are. Several threads share the heads of keys, and if these are
no multiple of them, the blocks of queries, too; then the last bits of the gradients of keys and
values depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import compiled_call
from singanet.ops.compiled.sizes import LANES, Scores
from singanet.ops.kernel import Route
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import Area, Crew, Stage, StagedPlan
from singanet.ops.window import Attended, Attention
from singanet.ops.workers import cuts
from singanet.types import Array, Shape, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.code import Code
    from singanet.ops.compiled.engine import CompiledFunction

_F32 = np.dtype(np.float32)

_LEAST = 1 << 22
"""Multiply-adds from which compiling, some tenths of a second, pays off in some hundred calls."""
_LEAST_PREPARED = 1 << 18
"""Multiply-adds of a predictor, which saves calls of Python: some ten microseconds."""
_VECTORS = 16
"""Most vectors of a head's features: the code has each of them."""
_EVERY = 1 << 40
"""Keys that a query without a window sees before and behind it."""


def _fits(ops: PlannedOps, q: Array, k: Array, v: Array, case: Attention) -> bool:
    size, width = q.shape[3], v.shape[3]
    rest = case.softcap, case.lengths, case.seen, case.added, case.segments
    return (
        not (size % LANES or width % LANES)
        and max(size, width) <= _VECTORS * LANES
        and not case.dropout
        and all(each is None for each in rest)
        # For a few queries it takes as long to arrange the keys as to read them.
        and q.shape[2] >= LANES
        and _adds(q, k, v, case) >= (_LEAST if ops.prepared is None else _LEAST_PREPARED)
        and not ops.narrow
        and ops.serves(1, q, k, v)
        and all(array.strides[3] == _F32.itemsize for array in (q, k, v))
        and has_compiler()
    )


def is_prepared(ops: PlannedOps, q: Array, k: Array, v: Array, case: Attention) -> bool:
    """Whether a predictor attends by one function."""
    return ops.prepared is not None and _fits(ops, q, k, v, case)


def _adds(q: Array, k: Array, v: Array, case: Attention) -> int:
    """Return the multiply-adds of both products."""
    low, high = case.visible(slice(0, q.shape[2]), k.shape[2])
    return math.prod(q.shape[:3]) * (high - low) * (q.shape[3] + v.shape[3])


def _fits_back(
    ops: PlannedOps, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
) -> bool:
    more = dmeans, made.means
    return (
        _fits(ops, made.q, made.k, made.v, case)
        and ops.serves(1, *more, made.lse)
        and made.lse.flags.c_contiguous
        and all(array.strides[3] == _F32.itemsize for array in more)
    )


def _attend(
    ops: PlannedOps, q: Array, k: Array, v: Array, case: Attention
) -> tuple[Array, Array] | None:
    n, heads, queries, _ = q.shape
    means = _by_steps(ops, (n, heads, queries, v.shape[3]))
    lse: Array = ops.xp.empty((n, heads, queries), np.float32)
    key = *_shapes(q, k, v), _strides(means, q, k, v), _numbers(case)
    passes = ops.passes(_adds(q, k, v, case) // means.size)
    return (means, lse) if ops.runs(_forward, key, means, lse, q, k, v, passes=passes) else None


def _attend_backward(
    ops: PlannedOps, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
) -> tuple[Array, Array, Array, None] | None:
    q, k, v, means, lse = made
    dq, dk, dv = (_by_steps(ops, each.shape) for each in (q, k, v))
    strides = _strides(dq, dk, dv, dmeans, q, k, v, means)
    key = *_shapes(q, k, v), strides, _numbers(case)
    passes = ops.passes(5 * _adds(q, k, v, case) // (2 * dq.size))
    done = ops.runs(_backward, key, dq, dk, dv, dmeans, q, k, v, means, lse, passes=passes)
    return (dq, dk, dv, None) if done else None


def _by_steps(ops: PlannedOps, shape: Shape) -> Array:
    """Return an array (N, h, T, d) whose memory is (N, T, h, d)."""
    n, heads, steps, size = shape
    made: Array = ops.xp.empty((n, steps, heads, size), np.float32)
    return made.transpose(0, 2, 1, 3)


def _shapes(q: Array, k: Array, v: Array) -> tuple[Shape, Shape]:
    return q.shape, (*k.shape[1:3], v.shape[3])


def _strides(*arrays: Array) -> Shape:
    return tuple(step for array in arrays for step in array.strides[:3])


def _numbers(case: Attention) -> Shape:
    """Return the first position, the keys ahead of and behind a query, and the scale's bits."""
    window = _EVERY if case.window is None else case.window
    ahead = 1 if case.causal else window
    return case.first, ahead, window - 1, int(np.float32(case.scale).view(np.int32))


attend = Route("compiled", _attend, _fits)
attend_backward = Route("compiled", _attend_backward, _fits_back)


class _SharedHeads:
    """The parts of a call: each has every so many blocks of queries of a sample and a group."""

    def __init__(self, crew: Crew, queries: Shape, keys: Shape, numbers: Shape) -> None:
        n, heads, count, size = queries
        groups, steps, width = keys
        self.pairs = n * groups
        self.chunks = crew.threads // math.gcd(self.pairs, crew.threads)
        self.cuts = cuts(self.pairs * self.chunks, crew.threads)
        self.scores = Scores(steps, size, width)
        self.vectors = size // LANES, width // LANES
        first, *rest = numbers
        self.numbers = self.chunks, groups, heads // groups, count, steps, first, *rest


def _forward(crew: Crew, queries: Shape, keys: Shape, strides: Shape, numbers: Shape) -> StagedPlan:
    """Operands: outputs, logarithms of sums, queries, keys, values."""
    from singanet.ops.compiled import attend_blocks, engine

    parts, wide = _SharedHeads(crew, queries, keys, numbers), engine.is_wide()
    function = _function(attend_blocks.attend, *parts.vectors, wide)

    def lay(areas: list[Area]) -> list[Stage]:
        return [
            [
                [_call(crew, function, area, ("panels",), (*cut, *parts.numbers, *strides))]
                for area, cut in zip(areas, parts.cuts, strict=True)
            ]
        ]

    buffers = {"panels": parts.scores.forward(wide)}
    return StagedPlan(crew, lay, buffers, 5, (0, 1), len(parts.cuts))


def _backward(
    crew: Crew, queries: Shape, keys: Shape, strides: Shape, numbers: Shape
) -> StagedPlan:
    """Operands: three gradients, the outputs' gradient, queries, keys, values, outputs, sums."""
    from singanet.ops.compiled import attend_blocks, engine

    parts, wide = _SharedHeads(crew, queries, keys, numbers), engine.is_wide()
    function = _function(attend_blocks.attend_back, *parts.vectors, wide)
    gather = _function(attend_blocks.attend_sums, *parts.vectors)
    buffers, shared = {"panels": parts.scores.backward(wide)}, {}
    if parts.chunks == 1:
        buffers["sums"] = parts.scores.sums
    else:
        shared["sums"] = parts.pairs * parts.chunks * parts.scores.sums

    def lay(areas: list[Area]) -> list[Stage]:
        places = "panels", "sums"
        stages: list[Stage] = [
            [
                [_call(crew, function, area, places, (*cut, *parts.numbers, *strides))]
                for area, cut in zip(areas, parts.cuts, strict=True)
            ]
        ]
        if parts.chunks > 1:
            _, dk, dv, *_ = areas[0].addresses
            given = dk, dv, areas[0].place("sums")
            rest = parts.chunks, keys[0], keys[1], *strides[3:9]
            stages.append(
                [
                    [compiled_call(gather, (*given, *cut, *rest), crew.brief)]
                    for cut in cuts(parts.pairs, crew.threads)
                ]
            )
        return stages

    return StagedPlan(crew, lay, buffers, 9, (0, 1, 2), len(parts.cuts), shared)


def _call(
    crew: Crew, function: CompiledFunction, area: Area, places: Sequence[str], numbers: Shape
) -> Work:
    given = *area.addresses, *map(area.place, places), *numbers
    return compiled_call(function, given, crew.brief)


@cache
def _function(write: Callable[..., Code], *given: Any) -> CompiledFunction:
    from singanet.ops.compiled import engine

    return engine.known(write, *given)
