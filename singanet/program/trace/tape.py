"""The tape: kernel calls as they are made, on memory that is known by number."""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from singanet.errors import SingaNetError
from singanet.params.store import place_of
from singanet.program.array_tree import address, map_arrays, root_of
from singanet.program.ir import Call, NotRecordableError, Phase, Ref, Token
from singanet.program.trace.shapes_only import Performed
from singanet.types import Array

Place = Literal["out", "first", "last", "hidden"]


_active = threading.local()


class _Part(NamedTuple):
    """A parameter in a bucket: the addresses where it begins and ends, and its token."""

    start: int
    end: int
    token: int


def current_tape() -> Tape | None:
    """The tape on which this thread is recording, if it is."""
    return getattr(_active, "tape", None)


class Tape:
    """Calls in the order in which they were made, and the memory they read and write."""

    def __init__(self, does: Performed) -> None:
        self.does = does
        self.calls: list[Call] = []
        self.tokens: list[Token] = []
        self.layer = ""
        self.lane: tuple[int, int] | None = None
        self.allowed: frozenset[int] | None = None
        self.phase: Phase = "forward"
        self.ops: Any = None
        self.refine: Callable[[SingaNetError], SingaNetError] | None = None
        self.interrupted = False
        self.folded: set[int] = set()
        self.outside: dict[Ref, Array] = {}
        self.scalars: list[Any] = []
        # By layer whether it is asked to be recomputed, or not to be.
        self.wishes: dict[str, bool | None] = {}
        # By the token of a bucket the parameters in it, which calls read and write.
        self._parts: dict[int, list[_Part]] = {}
        self._roots: dict[int, tuple[weakref.ref[Any], int]] = {}
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
        self._enter(array, Token(array.nbytes, fill=fill))

    def hold(self, array: Array, constant: bool = False, poison: str = "") -> None:
        """Know ``array`` as memory from outside of the program."""
        root = root_of(array)
        if place_of(array) is None:
            self._enter(root, Token(root.nbytes, root, constant, poison=poison))
            return
        known = self._roots.get(id(root))
        # Its memory is that of its parts.
        bucket = self._enter(root, Token(0, root)) if known is None else known[1]
        start = address(array)
        parts = self._parts.setdefault(bucket, [])
        if all(part.start != start for part in _overlapping(parts, start, start + array.nbytes)):
            insort(parts, _Part(start, start + array.nbytes, len(self.tokens)))
            self.tokens.append(Token(array.nbytes, array, constant, poison=poison))

    def _enter(self, root: Array, token: Token) -> int:
        key = id(root)
        number = len(self.tokens)
        self.tokens.append(token)

        # Weakly: the tape must go when its recording is done, not when the collector comes.
        mine = weakref.ref(self)

        def forget(_: object, key: int = key, number: int = number) -> None:
            tape = mine()
            if tape is not None and tape._roots.get(key, (None, -1))[1] == number:
                del tape._roots[key]

        self._roots[key] = (weakref.ref(root, forget), number)
        return number

    def knows(self, array: Array) -> bool:
        """Whether the memory of ``array`` has a number."""
        return id(root_of(array)) in self._roots

    def ref(self, array: Array) -> Ref:
        """``array`` as a place in numbered memory; what was not met before is held from outside."""
        root = root_of(array)
        known = self._roots.get(id(root))
        if known is None:
            if self.allowed is not None and id(root) not in self.allowed:
                raise NotRecordableError("an array that no kernel is known to have made")
            self.hold(root)
            known = self._roots[id(root)]
        number, origin = known[1], None
        if number in self._parts:
            parts = self._parts_in(number, array)
            if len(parts) == 1:
                number, origin = parts[0].token, parts[0].start
        token = self.tokens[number]
        if token.poison:
            raise NotRecordableError(token.poison)
        # Addresses are slow to ask for, and mostly it is the whole memory.
        whole = array.nbytes == token.nbytes and array.flags.c_contiguous
        offset = 0
        if not whole and array.size:
            offset = address(array) - (address(root) if origin is None else origin)
        once: Callable[[Any, Any], Any] = self._same.setdefault
        shape, strides = array.shape, array.strides
        made = Ref(number, offset, once(shape, shape), once(strides, strides), array.dtype)
        ref: Ref = once(made, made)
        if token.held is not None and ref not in self.outside:
            self.outside[ref] = array.view(np.ndarray)
        return ref

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
        found: dict[int, None] = {}
        for ref in refs:
            found[ref.token] = None
            if ref.token in self._parts:
                parts = self._parts_in(ref.token, self.outside[ref])
                found.update(dict.fromkeys(part.token for part in parts))
        return tuple(found)

    # -- calls ------------------------------------------------------------------------------

    def add(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        outs: Sequence[Array],
        place: Place = "out",
        *,
        changes: bool = False,
        elementwise: bool = False,
        name: str = "",
    ) -> Call:
        """Write down a call that reads ``arguments`` and ``keywords`` and fills ``outs``.

        ``place`` tells how it takes these: as the keyword out, as first or last arguments, or not
        at all. ``changes`` says that they are read as well. ``elementwise`` says that each element
        of the result depends on the same elements of the operands alone, so that it may take the
        memory of one.
        """
        read: list[Ref] = []

        def seen(array: Array) -> Ref:
            read.append(self.ref(array))
            return read[-1]

        def placed(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return seen(value)
            return map_arrays(value, seen) if isinstance(value, (tuple, list, dict)) else value

        given = tuple([placed(value) for value in arguments])
        named = {key: placed(value) for key, value in keywords.items()}
        filled = tuple(self._written(array) for array in outs)
        if place == "out":
            named["out"] = filled[0] if len(filled) == 1 else filled
        elif place != "hidden":
            given = (*filled, *given) if place == "first" else (*given, *filled)
        if place == "hidden" and not changes:
            # What is filled stands among the arguments, for the function to find it.
            read = [ref for ref in read if ref not in filled]
        partly = [ref for ref in filled if changes or not self._covers(ref)]
        pairs: list[tuple[int, int]] = []
        if elementwise and len(filled) == 1 and self._covers(filled[0]):
            out = filled[0]
            pairs = [(ref.token, out.token) for ref in read if self._may_share(ref, out)]
        call = Call(
            function,
            given,
            named,
            self._touched(read),
            self._touched(filled),
            self._touched(partly),
            tuple(dict.fromkeys(pairs)),
            self.layer,
            self.phase,
            name or getattr(function, "__name__", "call"),
            lane=self.lane,
        )
        self.calls.append(call)
        return call

    def _written(self, array: Array) -> Ref:
        ref = self.ref(array)
        token = self.tokens[ref.token]
        if token.constant:
            raise NotRecordableError("a constant that is changed")
        token.writes += 1
        return ref

    def _may_share(self, ref: Ref, out: Ref) -> bool:
        same = ref[2:4] == out[2:4] and ref.dtype.itemsize == out.dtype.itemsize
        return same and ref.token != out.token and self._covers(ref)

    def _covers(self, ref: Ref) -> bool:
        """Whether ``ref`` is all of its token's memory."""
        size = math.prod(ref.shape) * ref.dtype.itemsize
        return size == self.tokens[ref.token].nbytes


def _overlapping(parts: Sequence[_Part], start: int, end: int) -> list[_Part]:
    """Those of ``parts``, which rise, that have bytes from ``start`` up to ``end``."""
    first = bisect_right(parts, start, key=lambda part: part.end)
    return list(takewhile(lambda part: part.start < end, islice(parts, first, None)))
