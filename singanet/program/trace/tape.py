"""The tape: kernel calls in order, on memory that is known by number."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from singanet.base.heap import address
from singanet.base.kinds import Ranges, resident_bytes, union
from singanet.engine.backward import root_of
from singanet.engine.timeline import AllocationLog, Kind, LogMoment
from singanet.errors import SingaNetError
from singanet.ops.narrow import NarrowMatrix
from singanet.params.storage import place_of
from singanet.program.ir import Call, NotRecordableError, Phase, Ref, Token, map_arrays
from singanet.program.loads import ArrayStore, LoadedArray
from singanet.program.lowering import ON_HOST, Lowering
from singanet.program.trace.abstract import (
    AbstractArray,
    ArrayRegion,
    Filled,
    copy_order,
    current_tape,
    set_tape,
)
from singanet.program.trace.numbers import StepScalar
from singanet.program.trace.strides import extent, packed
from singanet.program.trace.values import Values
from singanet.types import Array, Shape


class _Part(NamedTuple):
    """A parameter in a bucket: its first byte, the byte after its last, and its region."""

    start: int
    end: int
    region: ArrayRegion


_TOKEN = itemgetter(0)
"""Of a `Ref`."""


@contextmanager
def recording_on(tape: Tape) -> Iterator[None]:
    """A block in which kernels record on ``tape``."""
    before = current_tape()
    try:
        with tape:
            yield
    finally:
        # Again, as an interrupt may occur at the start of `Tape.__exit__`.
        set_tape(before)


class Tape:
    """Calls in order, and the memory that they read and write."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.tokens: list[Token] = []
        self.layer = ""
        self.lane: tuple[int, int] | None = None
        self.allowed: frozenset[int] | None = None
        self.phase: Phase = "forward"
        # The backend that prepares the calls.
        self.lowering: Lowering = ON_HOST
        # The kernels that record on this tape, and the plain ones.
        self.ops: Any = None
        self.backend: Any = None
        self.refine: Callable[[SingaNetError], SingaNetError] | None = None
        # The input of the passes: gradients that move into others, and the byte; whether a caller
        # runs between the calls; whether results may be dropped, or stored in bfloat16; the
        # function that computes constants.
        self.moves: dict[int, tuple[int, int]] = {}
        self.interrupted = self.drops_unread = self.stores = False
        # Whether it is of a decoder's few rows.
        self.few = False
        # Whether there are arrays whose values only a replay has.
        self.is_blind = False
        # Whether a kernel draws numbers of the net's generator.
        self.draws = False
        self.make_constants: Callable[[Tape], None] | None = None
        # The function that checks pending sums between the calls.
        self.carry_on: Callable[[], None] | None = None
        self.folded: set[int] = set()
        self.outside: dict[Ref, Array] = {}
        self.scalars: dict[StepScalar, None] = {}
        # The setting of recompute, by layer.
        self.wishes: dict[str, bool | None] = {}
        # By the token of a bucket the parameters in it, which calls read and write.
        self._parts: dict[int, list[_Part]] = {}
        # By the id of an array from outside, which is kept alive, its place here.
        self._placed: dict[int, tuple[Any, AbstractArray]] = {}
        self._arrays: dict[Ref, Array] = {}
        self._roots: dict[int, ArrayRegion] = {}
        # The tokens without arrays, which no later call reads.
        self.gone: set[int] = set()
        # The log of a step by the layers. Scratch memory of kernels never shrinks.
        self.log: AllocationLog | None = None
        self._workspace, self._worked, self._working = 0, Ranges(), 0
        # Whether `Ops.as_one` records all its calls instead of one.
        self.apart = False
        # By the name of an array that is loaded, its place here.
        self._stored: dict[str, AbstractArray] = {}
        # The most bytes of stored arrays that one call loads, and the store of activations.
        self.loads = 0
        self.spills: ArrayStore | None = None
        # The bytes of arrays that Python steps own at each replay.
        self.beside = 0
        # The arrays that the caller fills, with values; the values of all arrays, if Python needed
        # some.
        self.fed: list[tuple[Ref, Any]] = []
        self.values: Values | None = None

    def __enter__(self) -> Tape:
        if current_tape() is not None:
            raise NotRecordableError("a recording within a recording")
        set_tape(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_tape(None)

    # -- memory -----------------------------------------------------------------------------

    def new(
        self, shape: Any, dtype: Any, order: tuple[int, ...] | None = None, fill: Any = None
    ) -> AbstractArray:
        """Return a new array of planned memory; ``order`` lists its axes from the outermost."""
        made = self._entered(shape, dtype, order, Token(0, fill=fill))
        if self.log is not None:
            self.note(made.nbytes, owner=made.region.number)
        return made

    def room(self, size: int) -> AbstractArray:
        """As `new`, of bytes that take as much memory as `write` tells."""
        return self._entered((size,), np.uint8, None, Token(0, written=()))

    def working(self, shape: Any, dtype: Any, written: Ranges | None = None) -> AbstractArray:
        """As `new`, of memory in which a kernel works, and which it leaves to the next."""
        made = self._entered(shape, dtype, None, Token(0, written=written))
        if self.log is None:
            return made
        more = ((0, made.nbytes),) if written is None else written
        if made.nbytes > self._workspace:
            self._workspace, self._worked = made.nbytes, more
        else:
            self._worked = union((*self._worked, *more))
        now = resident_bytes(self._worked, self._workspace)
        self.note(now - self._working, "scratch")
        self._working = now
        return made

    def like(self, array: Any, dtype: Any = None) -> AbstractArray:
        """Return a new array that is laid out as a copy of ``array``."""
        kind = array.dtype if dtype is None else dtype
        return self.new(array.shape, kind, copy_order(array, "K"))

    def filled(self, value: Any, shape: Any, dtype: Any = float, order: Any = None) -> Any:
        """Return a new array of equal values; for None, of undefined ones."""
        made = self.new(shape, dtype, order, fill=value)
        if value is not None:
            self.add(np.copyto, (value,), {}, (made,), "first", name="fill")
            self.tokens[made.region.number].writes = 0
        return made

    def filled_like(
        self, value: Any, array: Any, dtype: Any = None, order: Any = "K", subok: bool = True,
        shape: Any = None,
    ) -> Any:  # fmt: skip
        """Return a new array of equal values, laid out as by NumPy's ``full_like``."""
        kind = array.dtype if dtype is None else dtype
        if shape is None or shape == array.shape:
            return self.filled(value, array.shape, kind, copy_order(array, order))
        return self.filled(value, shape, kind)

    def _entered(
        self, shape: Any, dtype: Any, order: tuple[int, ...] | None, token: Token
    ) -> AbstractArray:
        kind = np.dtype(dtype)
        if type(shape) is not tuple:
            shape = (int(shape),) if hasattr(shape, "__index__") else tuple(shape)
        number, strides = len(self.tokens), packed(shape, kind.itemsize, order)
        self.tokens.append(token)
        token.nbytes = math.prod(shape) * kind.itemsize
        planned = token.held is None and not token.poison
        region = ArrayRegion(number, self if planned else None)
        made = AbstractArray(region, 0, shape, strides, kind)
        if planned:
            # Most are filled at once.
            made._ref = made.ref
        return made

    def write(self, array: AbstractArray, ranges: Ranges) -> None:
        """Count these bytes of an array of `room` as written from now on."""
        token = self.tokens[array.region.number]
        token.written = union((*(token.written or ()), *ranges))
        if self.log is not None:
            number, now = array.region.number, resident_bytes(token.written, token.nbytes)
            self.note(now - self.log.bytes_of(number), owner=number)

    def note(self, nbytes: int, kind: Kind = "array", owner: int = -1) -> None:
        """Note in the log a new piece of memory of ``owner``: a token, or -1."""
        if self.log is not None and nbytes > 0:
            self.log.make(self._now(), nbytes, kind, owner)

    def lend(self, nbytes: int) -> None:
        """Note arrays that exist for a moment in a step by the layers."""
        self.note(nbytes, owner=-2)
        self.freed(-2)

    def freed(self, owner: int) -> None:
        """Note in the log that no array lies in the memory of ``owner`` any more."""
        if self.log is not None:
            self.log.free(self._now(), owner)

    def _now(self) -> LogMoment:
        return LogMoment(self.layer, self.phase, len(self.calls))

    def in_blocks(self) -> AbstractContextManager[None]:
        """A block whose calls run in parts by the layers: new arrays are small there."""
        return nullcontext() if self.log is None else self.log.paused()

    def poisoned(self, array: Any, why: str) -> AbstractArray:
        """Return a place laid out as ``array`` that no kernel may read, and ``why``."""
        return self._entered(array.shape, array.dtype, None, Token(0, poison=why))

    # -- memory from outside ------------------------------------------------------------------

    def hold(self, array: Any, constant: bool = False, poison: str = "") -> AbstractArray:
        """Return the place of ``array``, whose memory is outside of the program."""
        found = self._placed.get(id(array))
        if found is not None:
            return found[1]
        place = self._held(array, constant, poison)
        self._placed[id(array)] = array, place
        self._arrays.setdefault(place.ref, array)
        return place

    def array(self, place: Any) -> Array:
        """Return the array whose place is ``place``; an array from outside is itself.

        Raises `NotRecordableError` for planned memory.
        """
        if not isinstance(place, AbstractArray):
            return cast("Array", place)
        if isinstance(self.tokens[place.region.number].held, LoadedArray):
            # It is in memory for the calls that use it.
            return cast("Array", place)
        if place.ref not in self._arrays:
            raise NotRecordableError("an array of its own for a parameter")
        return self._arrays[place.ref]

    def stored(
        self, store: ArrayStore, name: str, shape: Shape, dtype: np.dtype[Any]
    ) -> AbstractArray:
        """Return the place of an array of ``store``, which is loaded for the calls that use it."""
        found = self._stored.get(name)
        if found is None:
            strides = packed(shape, dtype.itemsize)
            token = Token(0, LoadedArray(store, name, shape, strides, dtype))
            found = self._stored[name] = self._entered(shape, dtype, None, token)
        return found

    def holders(self) -> dict[int, list[tuple[dict[Any, Any], Any]]]:
        """Return the entries that hold arrays from outside, by the number of their memory."""
        found: dict[int, list[tuple[dict[Any, Any], Any]]] = {}
        for key, (_, place) in self._placed.items():
            found.setdefault(place.region.number, []).append((self._placed, key))
        for arrays in (self._arrays, self.outside):
            for ref in arrays:
                found.setdefault(ref.token, []).append((arrays, ref))
        return found

    def release(self, number: int, holders: Iterable[tuple[dict[Any, Any], Any]]) -> None:
        """Drop an array from outside, which no call reads any more, from its `holders`."""
        token = self.tokens[number]
        self._roots.pop(id(token.held), None)
        token.held, token.poison = None, "an array that was dropped"
        for entries, key in holders:
            del entries[key]

    def live_of(self, array: Any) -> Callable[[], Array]:
        """Return a function that returns ``array`` as it is at a replay."""
        if type(array) is not AbstractArray:
            return lambda: array
        now: Callable[[], Array] = self.tokens[array.region.number].held.now
        return now

    def place(self, array: Any) -> AbstractArray:
        """Return the place of an array that a call reads or fills; an abstract one is its own."""
        if isinstance(array, AbstractArray):
            return array
        if self.allowed is not None and id(array) not in self._placed:
            root = id(root_of(array))
            if root not in self._roots and root not in self.allowed:
                raise NotRecordableError("an array that no kernel is known to have made")
        return self.hold(array)

    def _held(self, array: Any, constant: bool, poison: str) -> AbstractArray:
        root, placed = root_of(array), place_of(array)
        region = self._roots.get(id(root))
        if region is None:
            # The memory of a bucket is counted for its parts.
            nbytes = root.nbytes if placed is None else 0
            region = self._roots[id(root)] = ArrayRegion(len(self.tokens))
            self.tokens.append(Token(nbytes, root, constant, poison=poison))
        offset = 0
        if placed is not None and placed.bucket is root:
            offset = placed.start * array.itemsize
        elif array is not root and array.size:
            offset = address(array) - address(root)
        if placed is not None:
            parts = self._parts.setdefault(region.number, [])
            at = bisect_left(parts, (offset,))
            if at == len(parts) or parts[at].start != offset:
                own = ArrayRegion(len(self.tokens))
                self.tokens.append(Token(array.nbytes, array, constant, poison=poison))
                parts.insert(at, _Part(offset, offset + array.nbytes, own))
        place = AbstractArray(region, offset, array.shape, array.strides, array.dtype)
        if region.number in self._parts:
            within = self._parts_in(place.ref)
            if len(within) == 1:
                place.region, place.offset = within[0].region, offset - within[0].start
        return place

    def _parts_in(self, ref: Ref) -> list[_Part]:
        """The parameters in a bucket that the array at ``ref`` overlaps."""
        start, end = extent(ref.shape, ref.strides, ref.dtype.itemsize)
        parts = self._parts[ref.token]
        first = bisect_left(parts, (ref.offset + start,))
        # The one before may end behind the first byte.
        first -= first > 0 and parts[first - 1].end > ref.offset + start
        return parts[first : bisect_left(parts, (ref.offset + end,))]

    def ref(self, array: Any) -> Ref:
        """Return ``array`` as a place in numbered memory; a new array is entered from outside."""
        own = array if type(array) is AbstractArray else self.place(array)
        if own._ref is None:
            ref = own.ref
            if own.region.tape is None:
                self._enter(ref)
            own._ref = ref
        return own._ref

    def _enter(self, ref: Ref) -> None:
        """Take the array at ``ref`` in from outside. Raises `NotRecordableError`."""
        token = self.tokens[ref.token]
        if token.poison:
            raise NotRecordableError(token.poison)
        if type(token.held) is not LoadedArray and ref not in self.outside:
            known: Any = self._arrays.get(ref)
            plain = type(known) is np.ndarray
            self.outside[ref] = known if plain else self.lowering.view(token.held, ref)

    def _with_parts(self, tokens: Iterable[int], refs: Iterable[Ref]) -> tuple[int, ...]:
        """``tokens``, those of ``refs``, each once, with the parts of buckets."""
        found = dict.fromkeys(tokens)
        for ref in refs:
            if ref.token in self._parts:
                found.update((part.region.number, None) for part in self._parts_in(ref))
        return tuple(found)

    # -- values -----------------------------------------------------------------------------

    def shown(self, values: Any) -> Any:
        """Return ``values`` with copies of values in the place of abstract arrays, for Python."""
        if self.is_blind:
            raise NotRecordableError("Python that sees what comes from another process")
        if self.values is None:
            self.values = Values()
        for ref, array in self.fed:
            self.lowering.fill(self.values.array(self, ref), array)
        self.fed.clear()
        return self.values.of(self, values)

    # -- calls ------------------------------------------------------------------------------

    def add(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        outs: Sequence[Any],
        place: Filled = "out",
        *,
        changes: bool = False,
        elementwise: bool = False,
        name: str = "",
    ) -> Call:
        """Record a call that reads ``arguments`` and ``keywords`` and fills ``outs``.

        Known places may replace arrays. ``place`` is how the call gets the outputs: as the keyword
        out, as first or last arguments, or not at all. ``changes`` means that outputs are also
        read. ``elementwise`` means that each element of the result depends only on the same
        elements of the operands, so the result may reuse their memory.
        """
        read: list[Ref] = []
        given: list[Any] = []
        for value in arguments:
            # A call of its own for each took as long as all else here.
            if type(value) is AbstractArray:
                value = value._ref or self.ref(value)
                read.append(value)
            elif type(value) is not float:
                value = self._read(value, read)
            given.append(value)
        named = {key: self._read(keywords[key], read) for key in keywords} if keywords else {}
        filled: list[Ref] = []
        partly: list[Ref] = []
        for array in outs:
            ref = array._ref if type(array) is AbstractArray else array
            if type(ref) is not Ref:
                ref = self.ref(array)
            token = self.tokens[ref.token]
            if token.constant:
                raise NotRecordableError("a constant that is changed")
            token.writes += 1
            filled.append(ref)
            if changes or math.prod(ref.shape) * ref.dtype.itemsize != token.nbytes:
                # Some of its memory stays.
                partly.append(ref)
        if place == "out":
            named["out"] = filled[0] if len(filled) == 1 else tuple(filled)
        elif place != "hidden":
            given = [*filled, *given] if place == "first" else [*given, *filled]
        elif not changes:
            # The outputs are among the arguments already.
            read = [ref for ref in read if ref not in filled]
        reads = tuple(dict.fromkeys(map(_TOKEN, read)))
        writes = tuple(dict.fromkeys(map(_TOKEN, filled)))
        buckets = self._parts.keys()
        if not (buckets.isdisjoint(reads) and buckets.isdisjoint(writes)):
            reads, writes = self._with_parts(reads, read), self._with_parts(writes, filled)
        call = Call(
            function,
            tuple(given),
            named,
            reads,
            writes,
            self._with_parts(map(_TOKEN, partly), partly) if partly else (),
            self._shared(read, *filled) if elementwise and len(filled) == 1 and not partly else (),
            self.layer,
            self.phase,
            name or getattr(function, "__name__", "call"),
            lane=self.lane,
        )
        self.calls.append(call)
        return call

    def delete_from(self, mark: int) -> None:
        """Delete the calls from ``mark`` on."""
        del self.calls[mark:]
        if self.values is not None:
            self.values.go_back(mark)

    def _read(self, value: Any, read: list[Ref]) -> Any:
        """``value`` with refs in the place of arrays, which are added to ``read``."""
        # The common cases first: asking for an abstract class takes long.
        if type(value) is np.ndarray:
            value = self.ref(value)
        if type(value) is Ref:
            read.append(value)
            return value
        if isinstance(value, (float, int, str)) or value is None:
            return value
        if isinstance(value, NarrowMatrix):
            # It is read in place: calls that change it come before or after.
            read += [self.ref(array) for array in value.arrays]
            return value

        def placed(array: Any) -> Any:
            read.append(self.ref(array))
            return read[-1]

        return map_arrays(value, placed)

    def _shared(self, read: Sequence[Ref], out: Ref) -> tuple[tuple[int, int], ...]:
        """Which of ``read`` lie as ``out`` does, and are all of their memory as that is."""
        number, _, shape, strides, dtype = out
        nbytes, tokens = self.tokens[number].nbytes, self.tokens
        pairs: dict[tuple[int, int], None] = {}
        for ref in read:
            if (
                ref.token != number
                and ref.shape == shape
                and ref.strides == strides
                and ref.dtype.itemsize == dtype.itemsize
                and tokens[ref.token].nbytes == nbytes
            ):
                pairs[ref.token, number] = None
        return tuple(pairs)
