"""From the tape to a program: constants folded, what pays made again, memory planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from singanet.program.ir import Buffer, Call, Kernel, Ref, refs_of
from singanet.program.planning.arena import Layout, plan_arena
from singanet.program.recomputing.flow import Flow
from singanet.program.recomputing.kept_parameters import with_kept_parameters
from singanet.program.recomputing.passes import bytes_of, passes_of
from singanet.program.recomputing.recompute import Recompute, cannot_keep, chosen
from singanet.program.recomputing.repeated import with_repeated
from singanet.program.recording.lanes import kernels_of, with_lanes_joined
from singanet.program.recording.tape import Tape
from singanet.types import Array

_SMALL = 1 << 16
"""Bytes up to which an array that is filled and then only read is kept as a constant."""

_GOALS = (1.0, 0.98, 0.95, 0.9)
"""Parts of a budget to aim at: an arena takes a little more than what is needed at one time."""


@dataclass(frozen=True)
class Recording:
    """The calls of a tape with their memory planned: ``place`` tells where each token lies.

    ``kept_bytes`` is what the arena would take if nothing were made again.
    """

    calls: list[Call]
    outside: dict[Ref, Array]
    kernels: list[Kernel]
    buffers: list[Buffer]
    layout: Layout
    place: dict[int, int]
    kept_bytes: int


def build(
    tape: Tape, parameters: frozenset[int] = frozenset(), recompute: Recompute = "none"
) -> Recording:
    """Plan the memory of what ``tape`` holds; ``parameters`` are ids of arrays of the net.

    Errors: a number of bytes for ``recompute`` in which the arena cannot be kept.
    """
    outside = dict(tape.outside)
    calls = _fold_fills(tape, outside)
    if recompute != "none" and tape.interrupted:
        calls = with_kept_parameters(calls, tape.tokens, outside)
    calls = with_lanes_joined(calls, tape.tokens, tape.folded)
    kept = _planned(tape, calls, outside, parameters)
    if recompute == "none" or not any(call.phase == "backward" for call in calls):
        return kept

    def again(made: Recording, goal: int) -> Recording:
        passes = [passes_of(call) for call in made.calls]
        touched = [bytes_of(call, tape.tokens) for call in made.calls]
        flow = Flow(made.kernels, made.buffers, passes, touched)
        state, numbers = chosen(flow, recompute, goal), _numbers(made.calls)
        repeated = with_repeated(made.calls, numbers, state, tape.tokens)
        tried = _planned(tape, repeated, outside, parameters)
        return replace(tried, kept_bytes=kept.layout.nbytes)

    budget, best = 0 if recompute == "cheap" else recompute, kept
    for goal in [int(part * budget) for part in _GOALS]:
        made, less = kept, True
        # What is made again early may wait long in turn.
        while less and best.layout.nbytes > budget:
            before, made = made, again(made, goal)
            best, less = _smaller(best, made), made.layout.nbytes < before.layout.nbytes
        if best.layout.nbytes <= budget or made.layout.lower_bound > goal:
            break
    if recompute != "cheap" and best.layout.nbytes > budget:
        raise cannot_keep(budget, best.layout.nbytes)
    return best


def _smaller(one: Recording, other: Recording) -> Recording:
    return one if one.layout.nbytes <= other.layout.nbytes else other


def _numbers(calls: Sequence[Call]) -> dict[int, int]:
    """Buffers by their tokens, in the order in which these are met."""
    numbers: dict[int, int] = {}
    for call in calls:
        for token in (*call.reads, *call.writes):
            numbers.setdefault(token, len(numbers))
    return numbers


def _planned(
    tape: Tape, calls: list[Call], outside: dict[Ref, Array], parameters: frozenset[int]
) -> Recording:
    numbers = _numbers(calls)
    buffers = []
    for token in numbers:
        met = tape.tokens[token]
        if met.held is not None or token in tape.folded:
            kind: Any = "parameter" if id(met.held) in parameters else "constant"
            buffers.append(Buffer(met.nbytes, kind))
        else:
            buffers.append(Buffer(met.nbytes))
    kernels = kernels_of(calls, numbers)
    layout = plan_arena(kernels, buffers)
    offsets = {token: layout.offsets[number] for token, number in numbers.items()}
    place = {token: offset for token, offset in offsets.items() if offset is not None}
    return Recording(calls, outside, kernels, buffers, layout, place, layout.nbytes)


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
                token = tape.tokens[ref.token]
                # In the order of its strides: kernels are slow on operands that lie differently.
                memory = np.full(token.nbytes // ref.dtype.itemsize, token.fill, ref.dtype)
                outside[ref] = ref.array(memory)
    return calls
