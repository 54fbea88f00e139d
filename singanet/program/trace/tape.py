"""The tape: kernel calls as they are made, on memory that is known by number."""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from singanet.base.heap import address
from singanet.base.kinds import Ranges, resident_bytes, union
from singanet.engine.backward import base_of, root_of
from singanet.errors import SingaNetError
from singanet.ops.narrow import NarrowMatrix
from singanet.params.storage import place_of
from singanet.program.ir import Call, NotRecordableError, Phase, Ref, Token, map_arrays
from singanet.program.lowering import ON_HOST, Lowering
from singanet.program.on_device.device_products import DeviceArrays
from singanet.program.trace.evaluator import ConcreteEvaluator
from singanet.types import Array

Place = Literal["out", "first", "last", "hidden"]


_active = threading.local()


class _Root(weakref.ref[Any]):
    """An array that owns its memory, for as long as it lives, and the token of that memory."""

    __slots__ = ("key", "nbytes", "start", "token")
    key: int
    token: int
    nbytes: int
    start: int | None


class _Part(NamedTuple):
    """A parameter in a bucket: the addresses where it begins and ends, and its token."""

    start: int
    end: int
    token: int


def current_tape() -> Tape | None:
    """The tape on which this thread is recording, if it is."""
    return getattr(_active, "tape", None)


@contextmanager
def recording_on(tape: Tape) -> Iterator[None]:
    """A block in which kernels write what they do on ``tape``."""
    before = current_tape()
    try:
        with tape:
            yield
    finally:
        # Once more, as an interrupt may strike where `Tape.__exit__` begins.
        _active.tape = before


class Tape:
    """Calls in the order in which they were made, and the memory they read and write."""

    def __init__(self, evaluator: ConcreteEvaluator) -> None:
        self.evaluator = evaluator
        self.calls: list[Call] = []
        self.tokens: list[Token] = []
        self.layer = ""
        self.lane: tuple[int, int] | None = None
        self.allowed: frozenset[int] | None = None
        self.phase: Phase = "forward"
        # Where the net is on a device, its arrays that were met; what makes the calls ready.
        self.far: DeviceArrays | None = None
        self.lowering: Lowering = ON_HOST
        # The kernels that write what they do on this tape, and those themselves.
        self.ops: Any = None
        self.backend: Any = None
        self.refine: Callable[[SingaNetError], SingaNetError] | None = None
        # What the passes are to do: gradients to lay into others, from which byte on; whether a
        # caller runs between the calls; whether results may be dropped, or stored in bfloat16;
        # what to make of constants.
        self.moves: dict[int, tuple[int, int]] = {}
        self.interrupted = self.drops_unread = self.stores = False
        # Whether a kernel draws numbers of the net's generator.
        self.draws = False
        self.make_constants: Callable[[Tape], None] | None = None
        # What carries on sums with other processes between the calls.
        self.carry_on: Callable[[], None] | None = None
        self.folded: set[int] = set()
        self.outside: dict[Ref, Array] = {}
        self.scalars: list[Any] = []
        # By layer whether it is asked to be recomputed, or not to be.
        self.wishes: dict[str, bool | None] = {}
        # By the token of a bucket the parameters in it, which calls read and write.
        self._parts: dict[int, list[_Part]] = {}
        # By the id of an array; parameters in buckets are kept alive by their tokens.
        self._known: dict[int, _Root | _Part] = {}
        self._forget = _forgetting(self)
        # What the step takes by the layers: as many bytes of new arrays live at a time, beside the
        # memory that all kernels so far have worked in, which stays as large as it has become.
        self.live = self.most_live = self._working = 0
        # The same beside what the optimizer's state that is made on the way has grown to, and how
        # many calls were made by then.
        self.grown = self.most_grown = self.calls_by_then = 0
        # Whether kernels are asked what they write of the memory that they want; whether those that
        # are one call are to be written down as all that they make.
        self.watched = self.apart = False
        self._workspace, self._worked = 0, Ranges()
        # What layers in Python hold of their own at each replay.
        self.beside = 0
        # Programs have tens of thousands of places, most of them met often: each is one object.
        self._same: dict[Any, Any] = {}

    def __enter__(self) -> Tape:
        if current_tape() is not None:
            raise NotRecordableError("a recording within a recording")
        _active.tape = self
        return self

    def __exit__(self, *_: object) -> None:
        _active.tape = None

    # -- memory -----------------------------------------------------------------------------

    def adopt(self, array: Array, fill: Any = None) -> None:
        """Know the memory of the new ``array`` by a number; it is planned from now on."""
        self._more(self._enter(array, Token(array.nbytes, fill=fill)), array.nbytes)

    def adopt_room(self, array: Array) -> None:
        """As `adopt`, of memory that takes as much as `write` tells."""
        self._enter(array, Token(array.nbytes, written=()))

    def write(self, array: Array, ranges: Ranges) -> None:
        """Count those bytes of an array of `adopt_room` as written from now on."""
        known: Any = self._known_as(root_of(array))
        token = self.tokens[known.token]
        token.written = union((*(token.written or ()), *ranges))
        self._more(known, resident_bytes(token.written, token.nbytes) - known.nbytes)

    def adopt_working(self, array: Array, written: Ranges | None = None) -> None:
        """As `adopt`, of memory in which a kernel works, and which it leaves to the next."""
        self._enter(array, Token(array.nbytes, written=written))
        more = ((0, array.nbytes),) if written is None else written
        if array.nbytes > self._workspace:
            self._workspace, self._worked = array.nbytes, more
        else:
            self._worked = union((*self._worked, *more))
        now = resident_bytes(self._worked, self._workspace)
        if now > self._working:
            self._working = now
            self._count()

    def _more(self, known: _Root, nbytes: int) -> None:
        known.nbytes += nbytes
        self.live += nbytes
        if nbytes > 0:
            self._count()

    def grow(self, nbytes: int) -> None:
        """Count state of the optimizer's, which is made now and stays."""
        self.grown += nbytes
        self._count()

    def _count(self) -> None:
        now = self.live + self._working
        if now > self.most_live:
            self.most_live = now
        if now + self.grown > self.most_grown:
            self.most_grown, self.calls_by_then = now + self.grown, len(self.calls)

    def hold(self, array: Array, constant: bool = False, poison: str = "") -> None:
        """Know ``array`` as memory from outside of the program."""
        placed = place_of(array)
        array = self.near(array)
        root = root_of(array)
        if placed is None:
            self._enter(root, Token(root.nbytes, root, constant, poison=poison))
            return
        known = self._known_as(root)
        # Its memory is that of its parts.
        bucket = self._enter(root, Token(0, root)).token if known is None else known.token
        start = address(array)
        parts = self._parts.setdefault(bucket, [])
        if all(part.start != start for part in _overlapping(parts, start, start + array.nbytes)):
            part = _Part(start, start + array.nbytes, len(self.tokens))
            insort(parts, part)
            self._known[id(array)] = part
            self.tokens.append(Token(array.nbytes, array, constant, poison=poison))

    def lend(self, nbytes: int) -> None:
        """Count arrays that the layers would be lent for a moment."""
        self.live += nbytes
        self._count()
        self.live -= nbytes

    @contextmanager
    def in_blocks(self) -> Iterator[None]:
        """A block whose calls run in parts by the layers: new arrays are small there."""
        before = self.most_live, self.most_grown, self.calls_by_then
        yield
        self.most_live, self.most_grown, self.calls_by_then = before

    def _enter(self, root: Array, token: Token) -> _Root:
        known = _Root(root, self._forget)
        known.key, known.token, known.nbytes = id(root), len(self.tokens), 0
        known.start = None
        self._known[known.key] = known
        self.tokens.append(token)
        return known

    def _known_as(self, array: Any) -> _Root | _Part | None:
        """What is known of this very object.

        One that has gone may have had its id, where an interrupt ended what was to forget it.
        """
        known = self._known.get(id(array))
        return known if type(known) is not _Root or known() is array else None

    def near(self, array: Array) -> Array:
        """``array``, or what stands for it where it is a device's."""
        return array if self.far is None else self.far.near(array)

    def like(self, array: Array) -> Array:
        """``array``, or a new one of NumPy's that lies as it does where it is a device's."""
        return array if self.far is None else self.far.like(array)

    def expect_values(self) -> None:
        """Refuse to go on where numbers are to be `shown` and are not there.

        Raises `NeedsValuesError`.
        """
        if self.far is None:
            self.evaluator.expect_values()

    def shown(self, values: Any) -> Any:
        """Arrays in ``values`` as Python sees them that is no kernel: with their numbers.

        Of a device's nobody has these while it records: others of their form stand there.
        """
        far = self.far
        return map_arrays(values, _untraced if far is None else far.shown)

    def knows(self, array: Array) -> bool:
        """Whether the memory of ``array`` has a number."""
        return self._known_as(root_of(array)) is not None

    def ref(self, array: Array) -> Ref:
        """``array`` as a place in numbered memory; what was not met before is held from outside."""
        # Mostly a view of what a kernel has made, or of a parameter.
        owner: Any = array if array.base is None else array.base
        known = self._known_as(owner)
        if known is None:
            known, owner = self._owner(array)
        number = known.token
        if number in self._parts:
            parts = self._parts_in(number, array)
            if len(parts) == 1:
                known = parts[0]
                number = known.token
        token = self.tokens[number]
        if token.poison:
            raise NotRecordableError(token.poison)
        # Addresses are slow to ask for, and mostly it is the whole memory.
        offset = 0
        if (array.nbytes != token.nbytes or not _is_dense(array)) and array.size:
            if known.start is None:
                known.start = address(owner)
            offset = address(array) - known.start
        place = number, offset, array.shape, array.strides, array.dtype
        ref: Ref | None = self._same.get(place)
        if ref is None:
            once: Callable[[Any, Any], Any] = self._same.setdefault
            ref = Ref(number, offset, once(place[2], place[2]), once(place[3], place[3]), place[4])
            self._same[ref] = ref
        if token.held is not None and ref not in self.outside:
            self.outside[ref] = array.view(np.ndarray)
        return ref

    def _owner(self, array: Any) -> tuple[_Root | _Part, Any]:
        """The first of ``array``, its base, the base of that, ... that is known."""
        while (known := self._known_as(array)) is None:
            base = base_of(array)
            if base is not None:
                array = base
                continue
            if self.allowed is not None and id(array) not in self.allowed:
                raise NotRecordableError("an array that no kernel is known to have made")
            self.hold(array)
        return known, array

    def _parts_in(self, bucket: int, array: Array) -> list[_Part]:
        """The parameters in ``bucket`` of which ``array`` has elements."""
        start, end = address(array), 0
        if array.flags.c_contiguous:
            end = start + array.nbytes
        else:
            start, end = np.lib.array_utils.byte_bounds(array)
        return _overlapping(self._parts[bucket], start, end)

    def _touched(self, refs: Iterable[Ref]) -> tuple[int, ...]:
        """The tokens of ``refs``, each once, with the parts of buckets."""
        tokens = [ref.token for ref in refs]
        buckets = self._parts
        if buckets and not buckets.keys().isdisjoint(tokens):
            for ref in refs:
                if ref.token in buckets:
                    parts = self._parts_in(ref.token, self.outside[ref])
                    tokens += [part.token for part in parts]
        return tuple(tokens) if len(tokens) < 2 else tuple(dict.fromkeys(tokens))

    # -- calls ------------------------------------------------------------------------------

    def add(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        outs: Sequence[Array | Ref],
        place: Place = "out",
        *,
        changes: bool = False,
        elementwise: bool = False,
        name: str = "",
    ) -> Call:
        """Write down a call that reads ``arguments`` and ``keywords`` and fills ``outs``.

        Where places of arrays are known they may stand for these.
        ``place`` tells how it takes these: as the keyword out, as first or last arguments, or not
        at all. ``changes`` says that they are read as well. ``elementwise`` says that each element
        of the result depends on the same elements of the operands alone, so that it may take the
        memory of one.
        """
        read: list[Ref] = []
        given = tuple([self._read(value, read) for value in arguments])
        named = {key: self._read(value, read) for key, value in keywords.items()}
        partly: list[Ref] = []
        filled = tuple([self._written(array, changes, partly) for array in outs])
        if place == "out":
            named["out"] = filled[0] if len(filled) == 1 else filled
        elif place != "hidden":
            given = (*filled, *given) if place == "first" else (*given, *filled)
        elif not changes:
            # What is filled stands among the arguments, for the function to find it.
            read = [ref for ref in read if ref not in filled]
        pairs: list[tuple[int, int]] = []
        if elementwise and len(filled) == 1 and not partly:
            pairs = self._shared(read, filled[0])
        call = Call(
            function,
            given,
            named,
            self._touched(read),
            self._touched(filled),
            self._touched(partly) if partly else (),
            tuple(dict.fromkeys(pairs)) if pairs else (),
            self.layer,
            self.phase,
            name or getattr(function, "__name__", "call"),
            lane=self.lane,
        )
        self.calls.append(call)
        return call

    def _read(self, value: Any, read: list[Ref]) -> Any:
        """``value`` with refs in the place of arrays, which are added to ``read``."""
        if self.far is not None:
            value = self.far.near(value)
        if isinstance(value, np.ndarray):
            value = self.ref(value)
        if type(value) is Ref:
            read.append(value)
            return value
        if isinstance(value, (tuple, list, dict)):
            return map_arrays(value, lambda array: self._read(array, read))
        if isinstance(value, NarrowMatrix):
            # It is read as it is: what changes its memory comes before or after.
            read += [self.ref(self.near(array)) for array in value.arrays]
        return value

    def _written(self, filled: Array | Ref, changes: bool, partly: list[Ref]) -> Ref:
        """The place that is filled; in ``partly`` too, where some of its memory stays."""
        ref = filled if isinstance(filled, Ref) else self.ref(self.near(filled))
        token = self.tokens[ref.token]
        if token.constant:
            raise NotRecordableError("a constant that is changed")
        token.writes += 1
        if changes or math.prod(ref.shape) * ref.dtype.itemsize != token.nbytes:
            partly.append(ref)
        return ref

    def _shared(self, read: Sequence[Ref], out: Ref) -> list[tuple[int, int]]:
        """Which of ``read`` lie as ``out`` does, and are all of their memory as that is."""
        number, _, shape, strides, dtype = out
        nbytes, tokens = self.tokens[number].nbytes, self.tokens
        return [
            (ref.token, number)
            for ref in read
            if ref.token != number
            and ref.shape == shape
            and ref.strides == strides
            and ref.dtype.itemsize == dtype.itemsize
            and tokens[ref.token].nbytes == nbytes
        ]


def _untraced(array: Array) -> Array:
    return array.view(np.ndarray)


def _is_dense(array: Array) -> bool:
    """Whether its elements lie without gaps, in C order, its reverse, or channels last."""
    flags = array.flags
    return flags.forc or (array.ndim == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous)


def _forgetting(tape: Tape) -> Callable[[Any], None]:
    """A callback by which ``tape`` forgets an array that has gone."""
    # Weakly: the tape must go when its recording is done, not when the collector comes.
    mine = weakref.ref(tape)

    def forget(gone: Any) -> None:
        tape = mine()
        if tape is None:
            return
        tape.live -= gone.nbytes
        known: Any = tape._known.get(gone.key)
        # Another array may have got this id since.
        if known is gone:
            del tape._known[gone.key]

    return forget


def _overlapping(parts: Sequence[_Part], start: int, end: int) -> list[_Part]:
    """The ``parts``, which rise, with bytes between ``start`` and ``end``."""
    first = bisect_right(parts, start, key=lambda part: part.end)
    return list(takewhile(lambda part: part.start < end, islice(parts, first, None)))
