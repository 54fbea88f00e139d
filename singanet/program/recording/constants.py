"""What a program makes of constants alone: made once, when it is recorded."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from singanet.program.call import Call, Ref
from singanet.program.places import address, map_leaves
from singanet.program.planning.arena import ALIGNMENT
from singanet.program.recording.tape import Tape
from singanet.program.replaying.ready import ready_call
from singanet.types import Array


def make_constants(tape: Tape, constant: Collection[int]) -> None:
    """Run the calls that read nothing but constants, and keep what they made in their place.

    Constants are the arrays whose ids are ``constant``, what the recording itself made as such,
    and what follows from them.
    """
    made = _Made(tape)
    chosen = _of_constants(tape, constant)
    for call in chosen:
        made.run(call)
    ids = {id(call) for call in chosen}
    tape.calls = [call for call in tape.calls if id(call) not in ids]
    for call in tape.calls:
        map_leaves((call.arguments, call.keywords), Ref, made.keep)


class _Made:
    """The memory of what constant calls write."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._memory: dict[int, tuple[Array, int]] = {}

    def run(self, call: Call) -> None:
        """Make the call."""
        ready_call(call, self.array)()

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        found = self._tape.outside.get(ref)
        if found is not None:
            return found
        if ref.token not in self._memory:
            raw = np.empty(self._tape.tokens[ref.token].nbytes + ALIGNMENT, np.uint8)
            self._memory[ref.token] = raw, -address(raw) % ALIGNMENT
        return ref.array(*self._memory[ref.token])

    def keep(self, ref: Ref) -> None:
        """Let the program find the array at ``ref``, if it was made here, outside of its arena."""
        if ref.token in self._memory:
            token = self._tape.tokens[ref.token]
            token.held, token.fill = self._memory[ref.token][0], None
            self._tape.outside[ref] = self.array(ref)


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
        and (token.constant or id(token.held) in constant)
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
