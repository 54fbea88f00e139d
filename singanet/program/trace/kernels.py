"""Recorded kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np

from singanet.base.kinds import PAGE, Ranges
from singanet.engine.backward import arrays_in
from singanet.errors import SingaNetError
from singanet.ops import NumpyOps, Ops, numpy_ops
from singanet.ops.interface import Runs
from singanet.ops.narrow import HalvesMatrix, NarrowMatrix
from singanet.ops.narrow_products import bound
from singanet.program.cost import passes_for
from singanet.program.ir import (
    Call,
    NotRecordableError,
    Ref,
    filled_by,
    map_leaves,
    multiplied,
    multiplied_halves,
    picked,
    take_rows,
)
from singanet.program.lowering import ON_HOST
from singanet.program.narrow import PlannedKernel, bind_to
from singanet.program.trace.abstract import recording, taken
from singanet.program.trace.numbers import StepScalar
from singanet.program.trace.sparse_rows import (
    record_add_rows,
    record_add_to_rows,
    record_map_rows,
    record_of_rows,
    record_sum_rows,
    source_of,
)
from singanet.program.trace.tape import Tape
from singanet.types import Array, RowSparse, Shape


def _as_strided(array: Any, shape: Any = None, strides: Any = None, **_: Any) -> Any:
    """As NumPy's ``as_strided``."""
    array = recording().place(array)
    return array.viewed(tuple(shape), tuple(strides))


class TracingModule:
    """The module that kernels see as ``xp``; functions that make no array are NumPy's own."""

    lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))

    def __init__(self, tape: Tape, name: str = "numpy") -> None:
        self._tape = tape
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        # Called once a name: from then on it is an attribute.
        found = self.__dict__[name] = getattr(np, name)
        return found

    def empty(self, shape: Any, dtype: Any = float, order: Any = "C") -> Any:
        """As NumPy's."""
        return _filled(None, shape, dtype, order)

    def zeros(self, shape: Any, dtype: Any = float, order: Any = "C") -> Any:
        """As NumPy's."""
        return _filled(0, shape, dtype, order)

    def ones(self, shape: Any, dtype: Any = None, order: Any = "C") -> Any:
        """As NumPy's."""
        return _filled(1, shape, float if dtype is None else dtype, order)

    def full(self, shape: Any, value: Any, dtype: Any = None, order: Any = "C") -> Any:
        """As NumPy's."""
        if dtype is None:
            known = value.value if isinstance(value, StepScalar) else value
            dtype = known.dtype if hasattr(known, "dtype") else np.asarray(known).dtype
        return _filled(value, shape, dtype, order)

    def empty_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return recording().filled_like(None, array, *args, **kwargs)

    def zeros_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return recording().filled_like(0, array, *args, **kwargs)

    def ones_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return recording().filled_like(1, array, *args, **kwargs)

    def arange(self, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's, a constant of the program."""
        return self._tape.hold(np.arange(*args, **kwargs), constant=True)

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """As NumPy's; a value other than an array becomes a constant of the program."""
        if not hasattr(type(value), "__array_function__"):
            return self._tape.hold(np.array(value, dtype), constant=True)
        array = self._tape.place(value)
        return array if dtype is None else array.astype(dtype, copy=False)

    def array(self, value: Any, dtype: Any = None, order: Any = "K") -> Any:
        """As NumPy's."""
        if not hasattr(type(value), "__array_function__"):
            return self._tape.hold(np.array(value, dtype, order=order), constant=True)
        array = self._tape.place(value)
        return array.astype(array.dtype if dtype is None else dtype, order)

    def ascontiguousarray(self, value: Any, dtype: Any = None) -> Any:
        """As NumPy's, for arrays."""
        array = self.asarray(value, dtype)
        if array.flags.c_contiguous and array.ndim:
            return array
        return array._copied(array.dtype, "C", "contiguous")


def _filled(value: Any, shape: Any, dtype: Any, order: Any) -> Any:
    shape = (int(shape),) if hasattr(shape, "__index__") else tuple(shape)
    axes = tuple(range(len(shape))[::-1]) if order == "F" else None
    return recording().filled(value, shape, dtype, axes)


class RecordingKernels(NumpyOps):
    """The kernels that are recorded in another way than as functions of arrays."""

    def uniform(self, rng: Any, shape: Shape) -> Array:
        """Draws, again at each replay, from the generator that the net has then."""
        tape = recording()
        draws: Any = tape.new(shape, np.float32)
        tape.add(rng.fill, (), {}, (draws,), "first", name="uniform").barrier = True
        tape.draws = True
        return draws

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        """Each lane's calls as such; calls of lanes within a lane belong to the outer lane."""
        tape = recording()
        parts, outer, group = [*super().lanes(samples, multiplications)], tape.lane, len(tape.calls)
        for number, part in enumerate(parts):
            if outer is None and len(parts) > 1:
                tape.lane = group, number
            try:
                yield part
            finally:
                tape.lane = outer

    @property
    def sees_values(self) -> bool:
        """False: a replay would not read the values again."""
        return False

    def as_one(
        self,
        function: Callable[..., None],
        made: Sequence[Array],
        read: Sequence[Any],
        working: tuple[int, Any],
        adds: int,
    ) -> None:
        """Record one call, with working memory in the arena, or the single calls if asked."""
        tape = recording()
        if tape.apart:
            function(self, self.xp.empty(*working), *made, *read)
            return
        room = tape.working(*working)
        call = partial(filled_by, function, tape.backend, len(made))
        name = getattr(function, "func", function).__module__.rpartition(".")[2]
        written = tape.add(call, tuple(read), {}, (*made, room), "first", name=name)
        if hasattr(function, "bound") and tape.lowering is ON_HOST:
            written.bind = partial(_bound_one, function, tape.backend, len(made), written.arguments)
        written.passes = passes_for(adds, sum(ref.size for ref in arrays_in([read, *made])))

    def host(self, array: Array) -> Array:
        """Refused, since a replay would not look again."""
        raise NotRecordableError("a look at values on the host")

    def runs(self, build: Any, key: tuple[Any, ...], *arrays: Array, passes: int = 1) -> bool:
        """A kernel of oneDNN's, with working memory in the arena; bound once to its addresses."""
        library: Any = self
        runtime = library.runtime()
        plan = None if runtime is None else runtime.plan(build, key, arrays[0].size * passes)
        if plan is None:
            return False
        tape = recording()
        written = library.written(build, key, passes) if tape.log else {}
        call = record_plan(tape, plan, arrays, build.__name__.strip("_"), passes, written)
        if library.narrow and getattr(plan, "open", ()):
            what = runtime, (build, key, arrays[0].size * passes), plan
            scratch = call.writes[-1] if plan.scratch else None
            call.planned = PlannedKernel(*what, tuple(map(tape.ref, arrays)), scratch)
        return True

    def where_nan(self, repair: Callable[[Array, Array], None], y: Array, seen: Array) -> None:
        """Record one call that repairs NaN at each replay."""
        tape, library = recording(), cast("Any", self)
        look = library.repair_nan
        tape.add(look, (repair, seen), {}, (y,), "first", changes=True, name="look for NaN")

    def room(
        self, build: Any, key: tuple[Any, ...], operand: int, first: Array, passes: int = 1
    ) -> Array:
        """Return memory for an operand of oneDNN's, of which its kernels may write a part."""
        tape, kernels, library = recording(), cast("Any", self), cast("Any", super())
        if tape.log is None or operand not in kernels.written(build, key, passes):
            made: Array = library.room(build, key, operand, first, passes)
            return made
        size = kernels.runtime().plan(build, key, first.size * passes).sizes[operand]
        room: Any = tape.room(size)
        return room

    def gather_rows(self, table: Array | NarrowMatrix, indices: Array) -> Array:
        """Record the copy of rows at checked indices, without NumPy's own checks and buffers."""
        if isinstance(table, NarrowMatrix):
            return _record_picked(table, indices)
        tape = recording()
        made: Any = taken(tape.place(table), tape.place(indices), take_rows)
        return made

    def multiply_held(self, x: Array, held: NarrowMatrix, *, out: Array | None = None) -> Array:
        """Record one call: a narrow matrix is not an array of kernels."""
        tape = recording()
        y: Any = tape.new((len(x), held.shape[1]), np.float32) if out is None else out
        call: Any = partial(multiplied, tape.backend)
        read: tuple[Any, Any] = x, held
        if isinstance(held, HalvesMatrix):
            # Its memory is an array of the program's.
            call, read = partial(multiplied_halves, tape.backend, held.transposed), (x, held.values)
        written = tape.add(call, read, {}, (y,), "last", name="multiply held")
        written.passes = passes_for(len(x) * held.size, x.size + y.size + held.nbytes // 4)
        # The memory is predicted before anything runs.
        function = tape.backend.prepared_held(x, held)
        written.plans = () if function is None else (function,)
        if tape.lowering is ON_HOST and not isinstance(held, HalvesMatrix):
            written.bind = partial(_bound_product, tape.backend, tape.ref(x), held, tape.ref(y))
        return y

    def sum_rows(
        self, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
    ) -> tuple[Array, Array]:
        """Record the sum; each replay has its own number of rows."""
        return record_sum_rows(recording(), indices, rows, runs)

    def add_rows(self, a: RowSparse, b: RowSparse) -> tuple[Array, Array]:
        """Record the sum of the rows of each replay."""
        return record_add_rows(recording(), a, b)

    def add_to_rows(
        self, array: Array, indices: Array, rows: Array, out: Array | None = None
    ) -> Array:
        """Record the sum; rows that differ between replays are added by one call."""
        source = source_of(RowSparse(indices, rows))
        if source is None:
            return super().add_to_rows(array, indices, rows, out)
        return record_add_to_rows(recording(), array, source, out)

    def of_rows(self, function: Callable[[Array], Array], indices: Array, rows: Array) -> Array:
        """Record the function; rows that differ between replays are read by one call."""
        source = source_of(RowSparse(indices, rows))
        if source is None:
            return super().of_rows(function, indices, rows)
        return record_of_rows(recording(), function, source)

    def map_rows(
        self, function: Callable[..., RowSparse], indices: Array, rows: Array, *numbers: Any
    ) -> tuple[Array, Array]:
        """Record the function of the rows of each replay."""
        source = source_of(RowSparse(indices, rows))
        if source is None:
            raise NotRecordableError("rows of a table that no kernel made")
        return record_map_rows(recording(), function, source, rows, numbers)

    def check(self, function: Callable[[Array], None], array: Array) -> None:
        """Look at the values now and at each replay."""
        tape = recording()
        look = Look(function, tape.refine)
        call = tape.add(look, (array,), {}, (), "hidden", name="check")
        call.barrier = True
        place = tape.ref(array)
        call.bind = lambda array_of: look.at(array_of(place))

    def look_up(
        self, function: Callable[[Array, Array], None], indices: Array, shape: Shape, dtype: Any
    ) -> Array:
        """Record a look-up, made now if values are needed and at each replay."""
        tape = recording()
        rows: Any = tape.new(shape, dtype)
        if tape.lowering is not ON_HOST:
            function = partial(_through_host, function)
        tape.add(function, (indices,), {}, (rows,), "last", name="look up").barrier = True
        return rows


def _bound_one(
    function: Any, ops: Ops, count: int, given: Any, array_of: Callable[[Ref], Array]
) -> Callable[[], object]:
    """Return a call of `Ops.as_one` by a function that is bound to its arrays."""
    arrays = map_leaves(given, Ref, array_of)
    made: Callable[[], object] = function.bound(
        ops, arrays[count], *arrays[:count], *arrays[count + 1 :]
    )
    return made


def _bound_product(
    ops: Ops, x: Ref, held: NarrowMatrix, y: Ref, array_of: Callable[[Ref], Array]
) -> Callable[[], object]:
    """Return a call of the product, by the addresses if a function takes these."""
    given = array_of(x), held, array_of(y)
    return bound(ops, *given) or partial(multiplied, ops, *given)


def _record_picked(table: NarrowMatrix, indices: Array) -> Array:
    tape = recording()
    rows: Any = tape.new((*indices.shape, table.shape[1]), np.float32)
    tape.add(partial(picked, tape.backend), (table, indices), {}, (rows,), "last", name="take")
    return rows


def _through_host(function: Callable[[Array, Array], None], indices: Any, out: Any) -> None:
    """Let ``function`` fill NumPy's rows, and bring them over."""
    rows: Array = np.empty(out.shape, out.dtype)
    function(indices.get(), rows)
    out.set(rows)


class Look:
    """A check of values; ``refine``, if given, adds details to its errors."""

    def __init__(
        self,
        function: Callable[[Array], None],
        refine: Callable[[SingaNetError], SingaNetError] | None,
    ) -> None:
        self._function = function
        self._refine = refine

    def __call__(self, array: Array) -> None:
        """Check ``array``; errors are the function's."""
        self.at(array)()

    def at(self, array: Array) -> Callable[[], None]:
        """Return a check of the values of ``array`` at the time of its call."""
        # A check may have a faster form for an array at a fixed address.
        at = getattr(self._function, "at", None)
        look = partial(self._function, array) if at is None else at(array)

        def looked() -> None:
            try:
                look()
            except SingaNetError as error:
                if self._refine is None:
                    raise
                raise self._refine(error) from None

        return looked


def record_plan(
    tape: Tape,
    plan: Any,
    arrays: tuple[Array, ...],
    name: str,
    passes: int,
    written: Mapping[int, Ranges] = MappingProxyType({}),
) -> Call:
    """Write down a plan of oneDNN's on ``arrays``, one for each operand, for its `Call.passes`.

    ``written`` are the bytes of operands that it does not write as a whole; scratch comes last.
    """
    working: list[Any] = []
    if plan.scratch:
        scratch = plan.scratch + PAGE
        working = [tape.working((scratch,), np.uint8, written.get(len(arrays)))]
    for number in written.keys() & {*range(len(arrays))}:
        tape.write(tape.place(arrays[number]), written[number])
    places, room = tuple(map(tape.ref, arrays)), list(map(tape.ref, working))
    reads = tuple([places[k] for k in plan.reads])
    writes = [*[places[k] for k in plan.writes], *room]
    changes = not set(plan.reads).isdisjoint(plan.writes)
    call = tape.add(plan.run, reads, {}, writes, "hidden", changes=changes, name=name)
    call.bind = bind_to(plan, places, *room)
    call.passes = passes
    return call


def recording_kernels(ops: Ops, tape: Tape) -> Ops:
    """Return the kernels ``ops`` in a class that records on ``tape``."""
    # NumPy's kernels record for a device, too: only the module's name differs.
    made = copy.copy(ops if tape.lowering is ON_HOST else numpy_ops)
    made.__class__ = _recording_class(type(ops))
    made.xp = TracingModule(tape, ops.xp.__name__)
    tape.stores = getattr(ops, "stores", False)
    return made


@lru_cache(maxsize=64)
def _recording_class(kind: type[Ops]) -> Any:
    """A recording class for the kernels ``kind``, cached by class: two may have one name."""
    return type(f"Recording{kind.__name__}", (RecordingKernels, kind), {})
