"""Calls whose results nobody reads, left out of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from singanet.program.ir import Call, Token


def without_unread(
    calls: Sequence[Call],
    tokens: Sequence[Token],
    moves: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> list[Call]:
    """``calls`` without those whose results are in the program's memory and not read later.

    Layers in evaluation make arrays that only a backward would read. What ``moves`` is read in the
    memory where it will lie.
    """
    needed: set[int] = set()
    kept = []
    for call in reversed(calls):
        outside = any(tokens[token].held is not None for token in call.writes)
        writes = [*call.writes, *(moves[token][0] for token in call.writes if token in moves)]
        if call.function is None or call.barrier or outside or not needed.isdisjoint(writes):
            needed.update(call.reads)
            kept.append(call)
    return kept[::-1]
