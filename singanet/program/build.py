"""From the tape to a program: constants folded, memory planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.program.arena import Layout, plan_arena
from singanet.program.call import Call, Ref
from singanet.program.kernel import Buffer, Kernel
from singanet.program.places import map_leaves
from singanet.program.tape import Tape
from singanet.types import Array

_SMALL = 1 << 16
"""Bytes up to which an array that is filled and then only read is kept as a constant."""


@dataclass
class Recording:
    """The calls of a tape with their memory planned: ``layout`` tells where each token lies."""

    calls: list[Call]
    outside: dict[Ref, Array]
    kernels: list[Kernel]
    buffers: list[Buffer]
    layout: Layout
    place: dict[int, int]


def build(tape: Tape, parameters: frozenset[int] = frozenset()) -> Recording:
    """Plan the memory of what ``tape`` holds; ``parameters`` are ids of arrays of the net."""
    outside = dict(tape.outside)
    calls = _fold_fills(tape, outside)
    numbers: dict[int, int] = {}
    for call in calls:
        for token in (*call.reads, *call.writes):
            numbers.setdefault(token, len(numbers))
    buffers = []
    for token in numbers:
        met = tape.tokens[token]
        if met.held is not None or token in tape.folded:
            kind: Any = "parameter" if id(met.held) in parameters else "constant"
            buffers.append(Buffer(met.nbytes, kind))
        else:
            buffers.append(Buffer(met.nbytes))
    kernels: list[Kernel] = []
    written: set[int] = set()
    for call in calls:
        reads = (*call.reads, *(token for token in call.partly if token in written))
        written.update(call.writes)
        kernels.append(
            Kernel(
                call.name,
                tuple(dict.fromkeys(numbers[token] for token in reads)),
                tuple(numbers[token] for token in call.writes),
                call.layer,
                call.phase,
                tuple((numbers[a], numbers[b]) for a, b in call.in_place),
                call.barrier,
            )
        )
    layout = plan_arena(kernels, buffers)
    offsets = {token: layout.offsets[number] for token, number in numbers.items()}
    place = {token: offset for token, offset in offsets.items() if offset is not None}
    return Recording(calls, outside, kernels, buffers, layout, place)


def _fold_fills(tape: Tape, outside: dict[Ref, Array]) -> list[Call]:
    """The calls without those that fill small arrays which nothing changes: these are kept."""
    for number, token in enumerate(tape.tokens):
        if token.fill is not None and not token.writes and token.nbytes <= _SMALL:
            tape.folded.add(number)
    calls = []
    for call in tape.calls:
        if call.name == "fill" and call.writes and call.writes[0] in tape.folded:
            continue
        calls.append(call)
    for call in calls:
        for ref in refs_of(call):
            if ref.token in tape.folded and ref not in outside:
                outside[ref] = np.full(ref.shape, tape.tokens[ref.token].fill, ref.dtype)
    return calls


def refs_of(call: Call) -> list[Ref]:
    """The places that the call's arguments name."""
    found: list[Ref] = []
    map_leaves((call.arguments, call.keywords), Ref, found.append)
    return found
