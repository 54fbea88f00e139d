"""Row-sparse gradients in programs: which rows they are of, only a replay knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from singanet.ops import Ops, numpy_ops
from singanet.ops.interface import Runs
from singanet.program.ir import NotRecordableError
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import Traced, number_now
from singanet.types import Array, RowSparse


class RowsSource:
    """Where the gradient of the replay that is running comes from: ``now`` hands it over, once.

    ``look`` shows it before. Its rows are of ``nbytes`` at most, 0 where nobody knows.
    """

    def __init__(
        self, now: Callable[[], RowSparse], look: Callable[[], RowSparse], nbytes: int = 0
    ) -> None:
        self.now, self.look, self.nbytes = now, look, nbytes


class LiveIndices(Traced):
    """Indices that are others at each replay; ``source`` has them and their rows.

    No kernel may be recorded on them.
    """

    source: RowsSource


def live_rows(grad: RowSparse, source: RowsSource, tape: Tape) -> RowSparse:
    """``grad`` as rows that no recorded kernel may read."""
    for array in grad:
        tape.hold(array, poison="rows of a table that are others at each step")
    indices = grad.indices.view(LiveIndices)
    indices.source = source
    return RowSparse(indices, grad.rows.view(Traced))


def record_sum_rows(
    tape: Tape, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
) -> RowSparse:
    """Write down `Ops.sum_rows`, whose results lie outside of the arena."""
    kernel: Callable[..., tuple[Array, Array]] = _kernels(tape).sum_rows
    if runs is not None:
        kernel = partial(kernel, runs=runs)
    return _made(tape, kernel, (indices, rows), rows, rows.nbytes)


def record_add_rows(tape: Tape, a: RowSparse, b: RowSparse) -> RowSparse:
    """Write down `Ops.add_rows`. Raises `NotRecordableError` for rows that no kernel made."""
    one, other = source_of(a), source_of(b)
    if one is None or other is None:
        raise NotRecordableError("rows of a table")

    ops = _kernels(tape)

    def added() -> tuple[Array, Array]:
        return ops.add_rows(one.now(), other.now())

    return _made(tape, added, (), a.rows, one.nbytes + other.nbytes)


def record_add_to_rows(
    tape: Tape, array: Array, source: RowsSource, out: Array | None = None
) -> Array:
    """Write down `Ops.add_to_rows` of the rows that ``source`` has, as for a table that is tied."""
    ops = _kernels(tape)

    def add(total: Array) -> None:
        ops.add_to_rows(total, *source.now(), out=total)

    total = array.copy() if out is None else out
    call = tape.add(add, (), {}, (total,), "first", changes=True, name="add to rows")
    call.barrier = True
    return total


def record_map_rows(
    tape: Tape,
    function: Callable[..., RowSparse],
    source: RowsSource,
    like: Array,
    numbers: tuple[Any, ...],
) -> RowSparse:
    """Write down `Ops.map_rows` of the rows that ``source`` has."""

    def made(*now: Any) -> RowSparse:
        return function(source.now(), *map(number_now, now))

    return _made(tape, made, numbers, like, source.nbytes)


def record_of_rows(tape: Tape, function: Callable[[Array], Array], source: RowsSource) -> Array:
    """Write down `Ops.of_rows` of the rows that ``source`` has."""

    def fill(number: Array) -> None:
        number[...] = function(source.look().rows)

    number: Array = np.zeros((), np.float64)
    tape.adopt(number)
    tape.add(fill, (), {}, (number,), "first", name="of rows").barrier = True
    return number.view(Traced)


def _made(
    tape: Tape,
    function: Callable[..., tuple[Array, Array]],
    given: tuple[Array, ...],
    like: Array,
    nbytes: int,
) -> RowSparse:
    """The rows that ``function(*given)`` returns at each replay, like those of ``like``."""
    made: list[RowSparse] = []

    def make(*arrays: Array) -> None:
        made[:] = [RowSparse(*function(*arrays))]

    tape.add(make, given, {}, (), "hidden", name="sum rows").barrier = True
    nothing = RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
    # They lie outside of the arena.
    tape.beside += nbytes
    return live_rows(nothing, RowsSource(made.pop, lambda: made[0], nbytes), tape)


def _kernels(tape: Tape) -> Ops:
    """Those that work on rows at a replay."""
    kernels: Ops = numpy_ops if tape.far is None else tape.backend
    return kernels


def source_of(grad: Any) -> RowsSource | None:
    """The source of a gradient whose rows are others at each replay; None for any other."""
    return getattr(grad.indices, "source", None) if isinstance(grad, RowSparse) else None


def sources(grads: list[Any]) -> list[Any]:
    """``grads`` with the source in the place of each that has one."""
    return [source_of(grad) or grad for grad in grads]
