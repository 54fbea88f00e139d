"""Calls on constants alone: a predictor makes them once, when it is recorded."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from singanet.base.addresses import address
from singanet.base.forks import free_in_children
from singanet.engine.memory import root_of
from singanet.params.param import Param
from singanet.program.bind_call import ready_call
from singanet.program.ir import Call, Ref, refs_of
from singanet.program.layout.arena import ALIGNMENT
from singanet.program.prediction.constant import ConstantArray, array_of
from singanet.program.prediction.order import numbered
from singanet.program.trace.tape import Tape
from singanet.types import Array

_FLOAT = 4
"""Bytes of the type whose arrays are looked for in other orders."""


class Constants:
    """The constants of a predictor, and what its programs made of them, equal arrays once.

    A constant that a program has in another order is kept in that order alone.
    """

    def __init__(self, constants: Iterable[Param]) -> None:
        self.all = list({id(each): each for each in constants}.values())
        self._made: weakref.WeakValueDictionary[tuple[int, int], Array] = (
            weakref.WeakValueDictionary()
        )
        self.lock = free_in_children(threading.RLock())

    def named(self) -> dict[str, Param]:
        """By name."""
        return {each.name: each for each in self.all}

    def hold_nan(self) -> bool:
        """Whether any number is none."""
        return any(np.isnan(each.value).any() for each in self.all)

    def shared(self, made: Array) -> Array:
        """``made``, or an array with the same bytes that an earlier program made."""
        key = len(made), zlib.crc32(made.data)
        found = self._made.get(key)
        if found is not None and np.array_equal(found, made):
            return found
        self._made[key] = made
        return made

    def let_go(self) -> None:
        """Drop what was put together for somebody who is done with it."""
        for each in self.all:
            array_of(each).let_go()

    def settle(self, read: Iterable[Array], in_python: Collection[int]) -> None:
        """Let go of what lies elsewhere, but for what programs ``read`` as it is.

        ``in_python`` are ids of constants that the Python of layers reads.
        """
        roots = {id(root_of(array)) for array in read}
        for each in self.all:
            array = array_of(each)
            array.pinned |= id(each) in in_python or array.is_among(roots)
        self.let_go()


def make_constants(tape: Tape, constants: Constants) -> None:
    """Run the calls that read only constants, and keep their results in place of the calls.

    Constants are ``constants``, those of the recording itself, and what is computed from them.
    """
    given = _tokens(tape, constants)
    calls = _of_constants(tape, given)
    made = _ConstantMemory(tape)
    for call in calls:
        made.run(call)
    done = {id(call) for call in calls}
    tape.calls = [call for call in tape.calls if id(call) not in done]
    read = {ref for call in tape.calls for ref in refs_of(call)}
    for token in {ref.token for ref in read if made.has(ref.token)}:
        made.memory[token] = constants.shared(made.memory[token])
        _find_order(tape, calls, token, given, made)
        tape.tokens[token].held, tape.tokens[token].fill = made.memory[token], None
    # What only those calls have read is not to be held.
    tape.outside = {ref: array for ref, array in tape.outside.items() if ref in read}
    tape.outside |= {ref: made.array(ref) for ref in read if made.has(ref.token)}


class _ConstantMemory:
    """The memory of what constant calls write; ``given`` stands in for memory from outside."""

    def __init__(self, tape: Tape, given: Mapping[int, Array] | None = None) -> None:
        self._tape = tape
        self._given = given or {}
        self.memory: dict[int, Array] = {}

    def has(self, token: int) -> bool:
        """Whether it was written here."""
        return token in self.memory

    def run(self, call: Call) -> None:
        """Make the call."""
        ready_call(call, self.array)()

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        if ref.token in self._given:
            return ref.array(self._given[ref.token])
        found = self._tape.outside.get(ref)
        if found is not None:
            return found
        if ref.token not in self.memory:
            self.memory[ref.token] = _aligned(self._tape.tokens[ref.token].nbytes)
        return ref.array(self.memory[ref.token])


def _aligned(nbytes: int) -> Array:
    # Zeros, since what fills an axis up may be left as it is.
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    # The memory as an array that can be referred to weakly, and not the one around it.
    return np.frombuffer(raw.data[start : start + nbytes], np.uint8)


def _tokens(tape: Tape, constants: Constants) -> dict[int, ConstantArray]:
    """The constants by the number of their memory."""
    roots = {id(root_of(each.value)): array_of(each) for each in constants.all}
    return {
        number: roots[id(token.held)]
        for number, token in enumerate(tape.tokens)
        if token.held is not None and id(token.held) in roots
    }


def _find_order(
    tape: Tape,
    calls: list[Call],
    token: int,
    given: Mapping[int, ConstantArray],
    made: _ConstantMemory,
) -> None:
    """Tell the constant of which ``token`` holds the numbers, if it is one and holds but these."""
    needed, mine = {token}, []
    for call in reversed(calls):
        if not needed.isdisjoint(call.writes):
            needed.update(call.reads)
            mine.append(call)
    sources = [number for number in needed if number in given]
    if len(sources) != 1:
        return
    constant = given[sources[0]]
    too_small = tape.tokens[token].nbytes < constant.lend().nbytes
    if constant.dtype.itemsize != _FLOAT or constant.dtype.kind != "f" or too_small:
        return
    other = _ConstantMemory(tape, {sources[0]: numbered(constant.lend().size)})
    for call in reversed(mine):
        other.run(call)
    constant.found(made.memory[token], other.memory[token])


def _of_constants(tape: Tape, constant: Collection[int]) -> list[Call]:
    """The calls whose operands are constant and that alone write what they write."""
    writers: dict[int, list[int]] = {}
    for number, call in enumerate(tape.calls):
        for token in call.writes:
            writers.setdefault(token, []).append(number)
    given = {
        number
        for number, token in enumerate(tape.tokens)
        if token.held is not None
        and number not in writers
        and (token.constant or number in constant)
    }
    chosen = {
        number
        for number, call in enumerate(tape.calls)
        if call.function is not None
        and not call.barrier
        and not any(tape.tokens[token].held is not None for token in call.writes)
    }

    def known(token: int) -> bool:
        return token in given or (token in writers and chosen.issuperset(writers[token]))

    while True:
        kept = {
            number
            for number in chosen
            if all(map(known, tape.calls[number].reads + tape.calls[number].writes))
        }
        if kept == chosen:
            return [tape.calls[number] for number in sorted(chosen)]
        chosen = kept
