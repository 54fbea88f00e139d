"""Calls whose results nobody reads, left out of a program."""

from __future__ import annotations

from singanet.program.trace.tape import Tape


def drop_unread(tape: Tape) -> None:
    """Leave out the calls that write only memory of the program that no later call reads.

    A layer makes in evaluation what only its backward would read.
    """
    needed: set[int] = set()
    kept = []
    for call in reversed(tape.calls):
        outside = any(tape.tokens[token].held is not None for token in call.writes)
        if call.function is None or call.barrier or outside or not needed.isdisjoint(call.writes):
            needed.update(call.reads)
            kept.append(call)
    tape.calls = kept[::-1]
