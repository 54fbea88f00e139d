"""Calls of a tape with those that run again put in, and their readers led to the copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from singanet.program.ir import Call, Token
from singanet.program.recompute.state import RecomputeState
from singanet.program.relocate import placed


def with_repeated(
    calls: Sequence[Call], numbers: Mapping[int, int], state: RecomputeState, tokens: list[Token]
) -> list[Call]:
    """``calls`` with the repeated ones; ``numbers`` are the tokens' buffers in ``state``'s flow.

    Copies are added to ``tokens``.
    """
    flow = state.flow
    copies: dict[int, int] = {}
    for at in state.slot:
        for token in calls[at].writes:
            if token not in copies:
                copies[token] = len(tokens)
                tokens.append(Token(tokens[token].nbytes))
    inserted: dict[int, list[int]] = defaultdict(list)
    for at in sorted(state.slot):
        inserted[state.slot[at]].append(at)
    gone = {token: numbers[token] for token in copies if numbers[token] in state.dropped}
    back = {token: flow.uses[number][flow.split[number]] for token, number in gone.items()}
    made: list[Call] = []
    for at, call in enumerate(calls):
        for other in inserted.get(at, ()):
            first = calls[other]
            led = {token: copies[token] for token in first.writes}
            for token in first.reads:
                if (other, numbers[token]) in state.through:
                    led[token] = copies[token]
            made.append(replace(_led(first, led), phase="recompute"))
        used = (*call.reads, *call.writes)
        led = {token: copies[token] for token in used if token in back and at >= back[token]}
        made.append(_led(call, led) if led else call)
    return made


def _led(call: Call, led: Mapping[int, int]) -> Call:
    """``call`` on other tokens."""
    return placed(
        call, lambda ref: ref._replace(token=led[ref.token]) if ref.token in led else ref, led
    )
