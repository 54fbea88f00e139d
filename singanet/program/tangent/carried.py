"""A tape run once, with tangents beside its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from singanet.program.array_tree import map_leaves
from singanet.program.calls import gather, scatter, store, take_rows
from singanet.program.ir import Call, NotRecordableError, Ref, refs_of
from singanet.program.tangent.rules import is_constant, moves, rule_of
from singanet.program.trace.tape import Tape
from singanet.types import Array


class Carried:
    """The calls of ``tape``, made in their order; tangents start at the arrays of ``seeds``.

    Arrays that no seed has come to have no tangent. What a call makes lives as long as later ones
    read it.
    """

    def __init__(self, tape: Tape, seeds: Iterable[tuple[Array, Array]]) -> None:
        self.tape = tape
        self._xp: Any = tape.backend.xp
        self._memory: dict[int, Array] = {}
        self._tangents: dict[int, Array] = {}
        self._last: dict[int, int] = {}
        for at, call in enumerate(tape.calls):
            self._last.update(dict.fromkeys((*call.reads, *call.writes), at))
        for array, vector in seeds:
            self._tangent_at(tape.ref(tape.near(array)))[...] = vector

    def run(self) -> Iterator[Call]:
        """Make the calls; yields each mark, when all before it are done."""
        frees: dict[int, list[int]] = {}
        for token, at in self._last.items():
            frees.setdefault(at, []).append(token)
        for at, call in enumerate(self.tape.calls):
            if call.function is None:
                yield call
            else:
                self._make(call)
            for token in frees.get(at, ()):
                self._memory.pop(token, None)
                self._tangents.pop(token, None)

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        if self.tape.tokens[ref.token].held is not None:
            return self.tape.lowering.outside({ref: self.tape.outside[ref]})[ref]
        return self._lies(ref, self._memory)

    def tangent(self, ref: Ref) -> Array:
        """Its tangent; zeros if there is none."""
        if ref.token in self._tangents:
            return self._tangent_at(ref)
        zeros: Array = self._xp.zeros(ref.shape, ref.dtype)
        return zeros

    def _tangent_at(self, ref: Ref) -> Array:
        return self._lies(ref, self._tangents)

    def _lies(self, ref: Ref, memory: dict[int, Array]) -> Array:
        """The array at ``ref``, whose token lies in ``memory`` from its first use on."""
        token = ref.token
        if token not in memory:
            memory[token] = self._xp.zeros(self.tape.tokens[token].nbytes, np.uint8)
        return self.tape.lowering.array(ref, memory[token], 0)

    def _make(self, call: Call) -> None:
        """Make ``call``: first what its tangent is, since it may write over what it reads."""
        moved = any(ref.token in self._tangents for ref in refs_of(call))
        if call.name == "sum rows":
            # It has no output but its source, from which only tangents are asked.
            indices, rows = call.arguments
            call.function(self.array(indices), self.tangent(rows))  # type: ignore[misc]
            return
        changes = self._changes(call) if moved and call.writes else []
        with np.errstate(all="ignore"):
            self.tape.lowering.once(call, self.array)
        for ref, value, where in changes:
            if where is True:
                self._tangent_at(ref)[...] = value
            else:
                self._xp.copyto(self._tangent_at(ref), value, where=where)

    def _filled(self, value: Any, change: Any) -> Any:
        return map_leaves(value, Ref, change)

    def _changes(self, call: Call) -> list[tuple[Ref, Any, Any]]:
        """The places that ``call`` fills, each with its tangent and where that is written."""
        outs = _out_of(call)
        if outs is None:
            raise _no_rule(call)
        outs = [ref for ref in outs if ref.dtype.kind == "f"]
        if not outs:
            return []
        function, arguments, keywords = call.function, call.arguments, dict(call.keywords)
        if len(outs) > 1:
            raise _no_rule(call)
        (out,) = outs
        where: Any = True
        if function is np.copyto:
            (source,) = arguments[1:]
            where = self._filled(keywords.get("where", True), self.array)
            value = self.tangent(source).copy() if isinstance(source, Ref) else 0.0
            return [(out, value, where)]
        if function is scatter:
            _, index, value = arguments
            whole = self.tangent(out).copy()
            given = self.tangent(value) if isinstance(value, Ref) else 0.0
            whole[self._filled(index, self.array)] = given
            return [(out, whole, True)]
        if function is gather:
            array, index, _ = arguments
            return [(out, self.tangent(array)[self._filled(index, self.array)], True)]
        if function is take_rows:
            table, indices, _ = arguments
            return [(out, self.tangent(table)[self.array(indices)], True)]
        if function is store:
            _, function, arguments, keywords = arguments
        keywords.pop("out", None)
        where = self._filled(keywords.pop("where", True), self.array)
        return [(out, self._by_rule(call, function, arguments, keywords), where)]

    def _by_rule(self, call: Call, function: Any, arguments: Any, keywords: Any) -> Any:
        if is_constant(function):
            return 0.0
        rule = rule_of(function)
        if rule is None:
            raise _no_rule(call)
        tangents: dict[int, Ref] = {}

        def filled(ref: Ref) -> Array:
            # An array of its own for each place, by which its tangent is found.
            array = self.array(ref).view()
            tangents[id(array)] = ref
            return array

        arguments, keywords = self._filled((arguments, keywords), filled)

        def tangent(array: Array) -> Array:
            ref = tangents.get(id(array))
            return self.tangent(ref) if ref is not None and moves(array) else array

        function, keywords = self.tape.lowering.returning(function, keywords)
        with np.errstate(all="ignore"):
            return rule(function, arguments, keywords, tangent)


def _no_rule(call: Call) -> NotRecordableError:
    return NotRecordableError(
        f"{call.name!r} in {call.layer!r}, of whose derivative no rule is known"
    )


def _out_of(call: Call) -> list[Ref] | None:
    """The places that ``call`` fills; None if they are not known among its arguments."""
    out = call.keywords.get("out")
    if call.function in (np.copyto, scatter, store):
        out = call.arguments[0]
    elif call.function in (gather, take_rows):
        out = call.arguments[-1]
    return None if out is None else list(out) if type(out) is tuple else [out]
