"""Recorded sparse rows and narrow weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from mmap import mmap
from operator import add
from typing import Any

import numpy as np

from singanet.ops import Ops, numpy_ops
from singanet.ops.interface import Runs
from singanet.params.narrow import NarrowWeights, standing_in
from singanet.params.param import Param
from singanet.program.ir import NotRecordableError
from singanet.program.lowering import ON_HOST
from singanet.program.trace.abstract import AbstractArray
from singanet.program.trace.numbers import number_now
from singanet.program.trace.tape import Tape
from singanet.types import Array, RowSparse, Shape

_LIVE = "rows of a table that are others at each step"


class RowsSource:
    """The source of a gradient in the running replay: ``now`` returns it, once.

    ``look`` returns it before. Its rows have ``nbytes`` at most, 0 if unknown.
    """

    def __init__(
        self, now: Callable[[], RowSparse], look: Callable[[], RowSparse], nbytes: int = 0
    ) -> None:
        self.now, self.look, self.nbytes = now, look, nbytes


class LiveIndices(AbstractArray):
    """Indices that differ between replays; ``source`` has them and their rows.

    No kernel may be recorded on them.
    """

    __slots__ = ("source",)
    source: RowsSource


def live_rows(grad: RowSparse, source: RowsSource, tape: Tape) -> RowSparse:
    """Rows of the types of ``grad`` that no recorded kernel may read."""
    indices, rows = (tape.poisoned(array, _LIVE) for array in grad)
    made: Any = LiveIndices(
        indices.region, indices.offset, indices.shape, indices.strides, indices.dtype
    )
    made.source = source
    of_rows: Any = rows
    return RowSparse(made, of_rows)


def record_sum_rows(
    tape: Tape, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
) -> RowSparse:
    """Record `Ops.sum_rows`, whose results are outside the arena."""
    kernel: Callable[..., tuple[Array, Array]] = _kernels(tape).sum_rows
    if runs is not None:
        kernel = partial(kernel, runs=runs)
    return _made(tape, kernel, (indices, rows), rows, rows.nbytes)


def record_add_rows(tape: Tape, a: RowSparse, b: RowSparse) -> RowSparse:
    """Record `Ops.add_rows`. Raises `NotRecordableError` for rows that no kernel made."""
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
    """Record `Ops.add_to_rows` of the rows that ``source`` has, as for a tied table."""
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
    """Record `Ops.map_rows` of the rows that ``source`` has."""

    def made(*now: Any) -> RowSparse:
        return function(source.now(), *map(number_now, now))

    return _made(tape, made, numbers, like, source.nbytes)


def record_of_rows(tape: Tape, function: Callable[[Array], Array], source: RowsSource) -> Array:
    """Record `Ops.of_rows` of the rows that ``source`` has."""

    def fill(number: Array) -> None:
        number[...] = function(source.look().rows)

    number: Any = tape.new((), np.float64)
    tape.add(fill, (), {}, (number,), "first", name="of rows").barrier = True
    return number


def _made(
    tape: Tape,
    function: Callable[..., tuple[Array, Array]],
    given: tuple[Array, ...],
    like: Array,
    nbytes: int,
) -> RowSparse:
    """The rows that ``function(*given)`` returns at each replay, of the types of ``like``."""
    made: list[RowSparse] = []

    def make(*arrays: Array) -> None:
        made[:] = [RowSparse(*function(*arrays))]

    tape.add(make, given, {}, (), "hidden", name="sum rows").barrier = True
    nothing = RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
    # They are outside the arena.
    tape.beside += nbytes
    return live_rows(nothing, RowsSource(made.pop, lambda: made[0], nbytes), tape)


def _kernels(tape: Tape) -> Ops:
    """The kernels that compute rows at a replay."""
    kernels: Ops = numpy_ops if tape.lowering is ON_HOST else tape.backend
    return kernels


def source_of(grad: Any) -> RowsSource | None:
    """The source of a gradient whose rows differ between replays; None for any other."""
    return getattr(grad.indices, "source", None) if isinstance(grad, RowSparse) else None


def sources(grads: list[Any]) -> list[Any]:
    """``grads`` with the source in the place of each that has one."""
    return [source_of(grad) or grad for grad in grads]


class NarrowParameters:
    """The narrow ones among ``params``, by name.

    Kernels of products read their matrices as they are. Other readers get a placeholder without
    values, and are refused.
    """

    def __init__(self, net: Any, params: Sequence[Param]) -> None:
        self._net = net
        self.by_name: dict[str, NarrowWeights] = {}
        self._arrays: dict[int, Array] = {}
        for param in params:
            storage = param.storage
            if isinstance(storage, NarrowWeights):
                self.by_name[param.name] = storage
                self._arrays[id(storage)] = _unwritten(storage.matrix.xp, param.shape)
        # A program has one at a time: of what products widen, and of what updates are lent.
        matrices = [storage.matrix for storage in self.by_name.values()]
        self.lent = max((matrix.widened_bytes for matrix in matrices), default=0)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    @property
    def arrays(self) -> list[Array]:
        """The memory of all narrow weights."""
        return [array for each in self.by_name.values() for array in each.matrix.arrays]

    def hold(self, tape: Tape) -> None:
        """Enter the memory of all narrow weights, and their placeholders, on ``tape``."""
        for array in self.arrays:
            tape.hold(array)
        for name, storage in self.by_name.items():
            why = f"a look at {name!r}, which is held in fewer bits"
            tape.hold(self._arrays[id(storage)], poison=why)

    def standing_in(self) -> AbstractContextManager[None]:
        """A block in which this thread gets the placeholders."""
        return standing_in(self._arrays)

    def sizes(self) -> dict[int, int]:
        """The bytes of the narrow arrays, by id."""
        found: dict[int, int] = {}
        for storage in self.by_name.values():
            sizes = {id(array): array.nbytes for array in storage.matrix.arrays}
            rest = storage.nbytes_trained - sum(sizes.values())
            found |= sizes | ({id(storage): rest} if rest else {})
        return found

    def memory_of(self, name: str, value: Array) -> Sequence[Array]:
        """The arrays that an update of the parameter changes: ``value``, or the narrow ones."""
        storage = self.by_name.get(name)
        return [value] if storage is None else storage.matrix.arrays

    def change(
        self, names: Sequence[str], values: Sequence[Array], function: Callable[[list[Array]], None]
    ) -> None:
        """Call ``function`` on the values, with float32 copies of narrow ones, and store these."""
        found = [self.by_name.get(name) for name in names]
        function(
            [
                value if storage is None else storage.lend()
                for value, storage in zip(values, found, strict=True)
            ]
        )
        for storage in found:
            if storage is not None:
                storage.settle(self._net.rng)

    def count(self, names: Sequence[str], tape: Tape) -> None:
        """Count the float32 copies of an update, in addition to the recorded arrays."""
        if not self.by_name:
            return
        found = [self.by_name[name] for name in names if name in self]
        sizes = [4 * storage.matrix.size for storage in found]
        rounding = [storage.rounding_bytes for storage in found]
        # The layers have all of a layer.
        self.lent = max(self.lent, *map(add, sizes, rounding), 0)
        tape.lend(sum(sizes) + max(rounding, default=0))


def _unwritten(xp: Any, shape: Shape) -> Array:
    """An array that is never written, so that it takes no memory."""
    if xp is np:
        # malloc may return written pages, which would stay resident for nothing.
        pages = mmap(-1, max(1, 4 * math.prod(shape)))
        return np.frombuffer(pages, np.float32, math.prod(shape)).reshape(shape)
    # A device allocates memory at once.
    made: Array = xp.broadcast_to(xp.empty((), np.float32), shape)
    return made
