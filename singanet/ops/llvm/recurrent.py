"""Run the steps of LSTM layers by functions compiled with LLVM.

Threads share the units, step by step: each core's cache then has its own part of the weight. They
share the samples, which do not wait for each other, if the units are uneven or the gradients would
wait twice a step, unless the samples are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import LANES
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import CompiledPlan, Crew, Stages
from singanet.ops.numpy import recurrent as by_numpy
from singanet.ops.numpy.recurrent import input_gates, state_buffer, through_gates
from singanet.ops.window import RecurrentCase, RecurrentGradients, RecurrentSlopes, RecurrentStates
from singanet.ops.workers import cuts
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_LEAST = 1 << 20
"""Multiply-adds of the steps from which compiling pays off within some hundred calls."""

_ROOM = 2
"""Inputs for each sample up to which reading their weight at each step takes less than gates."""

_SAMPLES = 4
"""Samples of a thread whose gradients take longer than reading the weight from a far cache."""


def _forward(
    ops: PlannedOps, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    xp, direction, (_, n, inputs), (of_x, of_h) = ops.xp, case.direction, case.x.shape, case.weights
    steps, size, bias = len(case.x), len(of_h), case.biases[0]
    if of_x is None or inputs > _ROOM * n:
        gates, inputs, kept = input_gates(ops, case, bias), 0, True
    else:
        gates, kept = xp.empty((steps if keep else 1, n, 4 * size), np.float32), keep
    h, c = (state_buffer(ops, (steps + 1, n, size), s, gates, direction) for s in starts)
    panels = _panels(ops, of_h)
    # Without inputs the function reads none of these.
    rest: Any = (panels,) * 3
    if of_x is not None and inputs:
        rest = ops.ordered(case.x), _panels(ops, of_x), ops.ordered(bias)
    key = steps, n, size, inputs, kept, direction.reverse
    arrays = gates, h, c, panels, *rest
    # The gates may be those of one step at a time.
    passes = ops.passes(size + inputs) * (steps // len(gates))
    if not ops.runs(_plan, key, *arrays, passes=passes):
        return None
    return RecurrentStates((h, c), (gates,) if keep else ())


def _panels(ops: PlannedOps, weight: Array) -> Array:
    inputs, width = weight.shape
    split = ops.ordered(weight).reshape(inputs, 4, width // (4 * LANES), LANES)
    made: Array = ops.xp.ascontiguousarray(split.transpose(2, 1, 0, 3))
    return made


def _back(
    ops: PlannedOps, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients | None:
    xp, (h, c), (gates,), weight = ops.xp, made.states, made.notes, case.weights[1]
    dh, dc = (xp.array(end, order="C") for end in slopes.ends)
    d: Array = xp.empty(gates.shape, gates.dtype)
    rest = [] if slopes.dy is None else [ops.ordered(slopes.dy)]
    steps, n, width = gates.shape
    key = steps, n, width // 4, case.direction.reverse, bool(rest)
    arrays = d, dh, dc, gates, c, ops.ordered(weight), *rest
    if not ops.runs(_back_plan, key, *arrays, passes=ops.passes(width // 4)):
        return None
    return through_gates(ops, case, h, (d, d), (dh, dc), slopes.needs_dx)


def _serves(ops: PlannedOps, case: RecurrentCase, *arrays: Array | None) -> bool:
    size = len(case.weights[1])
    steps, n, _ = case.x.shape
    given = [array for array in (case.x, *case.weights, *arrays) if array is not None]
    return (
        case.direction.is_plain
        and size % LANES == 0
        and 4 * steps * n * size * size >= _LEAST
        and not ops.narrow
        and ops.serves(1, *given)
        and has_compiler()
    )


def _fits(ops: PlannedOps, case: RecurrentCase, starts: Sequence[Array | None], keep: bool) -> bool:
    return _serves(ops, case, *starts)


def _fits_back(
    ops: PlannedOps, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> bool:
    return _serves(ops, case, *made.states, *made.notes, slopes.dy, *slopes.ends)


def _plan(
    crew: Crew, steps: int, n: int, size: int, inputs: int, kept: bool, reverse: bool
) -> CompiledPlan:
    """Operands: the gates, h, c, the weight in panels; x, its weight in panels and the bias."""
    numbers = inputs, int(kept)
    stages = _stages(crew, crew.joined, steps, n, size, (reverse, reverse), 1, numbers)
    reads = (1, 2, 3, 4, 5, 6) if inputs else (0, 1, 2, 3, 4, 5, 6)
    return CompiledPlan(crew, _function(), stages, reads, writes=(0, 1, 2))


def _back_plan(
    crew: Crew, steps: int, n: int, size: int, reverse: bool, sloped: bool
) -> CompiledPlan:
    """Operands: the gradients of the gates, dh, dc, the gates, c, the weight, dy."""
    parts, rest = cuts(size // LANES, crew.threads), (0,) * 4
    arranged = [(n, size, *rest, 0, 0, *some, *rest) for some in parts]
    stages = [arranged, *_stages(crew, crew.threads, steps, n, size, (not reverse, reverse), 2, ())]
    reads, room = tuple(range(1, 6 + sloped)), 4 * 4 * size * size
    return CompiledPlan(crew, _back_function(sloped), stages, reads, (0, 1, 2), room)


def _stages(
    crew: Crew,
    threads: int,
    steps: int,
    n: int,
    size: int,
    order: tuple[bool, bool],
    parts: int,
    numbers: tuple[int, ...],
) -> Stages:
    """Return calls for ranges of samples, or of the units of each step in ``parts`` stages.

    ``order`` is whether the last step is the first one, and whether the states are in reverse;
    ``numbers`` come before the ranges.
    """
    (backwards, reverse), vectors = order, size // LANES
    first, by = (steps - 1, -1) if backwards else (0, 1)
    laid = (0, 0) * (parts - 1)
    by_units = n < _SAMPLES * threads or (parts == 1 and vectors % threads == 0)
    if threads == 1 or crew.jobs is None or not by_units:
        whole = n, size, first, by, steps, int(reverse), *numbers
        return [[(*whole, *some, *laid, *(0, vectors) * parts) for some in cuts(n, threads)]]
    stages = []
    for k in range(steps):
        step = n, size, first + k * by, by, 1, int(reverse), *numbers, 0, n, *laid
        for part in range(parts):
            before, after = (0, 0) * part, (0, 0) * (parts - part - 1)
            some = cuts(vectors, threads)
            stages.append([(*step, *before, *units, *after) for units in some])
    return stages


@cache
def _function() -> CompiledFunction:
    from singanet.ops.compiled import engine, recurrent

    return engine.known(recurrent.lstm)


@cache
def _back_function(sloped: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, recurrent

    return engine.known(recurrent.lstm_back, sloped)


lstm_steps = Route("compiled", _forward, _fits)
lstm_layer = in_order(lstm_steps, last=by_numpy.lstm_layer)
lstm_layer_backward = in_order(
    Route("compiled", _back, _fits_back), last=by_numpy.lstm_layer_backward
)
