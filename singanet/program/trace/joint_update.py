"""One update of many small parameters, whose gradients and state lie side by side.

An element-wise rule treats them as one parameter; only what reads or changes the parameters
themselves, which are their owners' arrays, is a call for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.state import ParamState
from singanet.program.array_tree import address
from singanet.program.ir import Call, NotRecordableError, Ref
from singanet.program.relocate import moved, placed
from singanet.program.trace.shapes_only import Imagined
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import Traced
from singanet.program.trace.update_scalars import Numbers
from singanet.types import Array

Moves = dict[int, tuple[int, int]]
"""By token: the token in which it lies instead, and from which byte on."""


@dataclass
class Waiting:
    """A parameter of ``layer`` whose update waits for others."""

    layer: str
    state: ParamState
    value: Array
    grad: Array
    scale: Any = 1.0

    def fits(self, tape: Tape, moves: Moves) -> bool:
        """Whether value, gradient and state are dense, and the gradient a memory by itself."""
        value, grad = self.value, self.grad
        dense = value.flags.c_contiguous and grad.flags.c_contiguous
        if not dense or grad.dtype != value.dtype or not value.size:
            return False
        if any(array.shape != (value.size,) for array in self.state.arrays):
            return False
        number = tape.ref(grad).token
        token = tape.tokens[number]
        planned = token.held is None and token.writes and token.nbytes == grad.nbytes
        return bool(planned) and number not in moves


def joint_update(
    tape: Tape, optimizer: ElementWise, group: Sequence[Waiting]
) -> tuple[Numbers, Moves]:
    """Write the update of ``group`` on the tape: its numbers, and where its gradients are to lie.

    Raises `NotRecordableError` where the rule is more than element-wise functions.
    """
    tokens = [tape.ref(waiting.grad).token for waiting in group]
    if len(set(tokens)) < len(tokens):
        raise NotRecordableError("a gradient of two parameters")
    ends = np.cumsum([waiting.value.size for waiting in group]).tolist()
    bounds = list(pairwise([0, *ends]))
    kind = group[0].value.dtype
    arrays = _side_by_side([waiting.state for waiting in group], bounds, kind)
    numbers = Numbers(optimizer, [waiting.state for waiting in group])
    whole, grads = np.empty(ends[-1], kind), np.empty(ends[-1], kind)
    tape.adopt(whole)
    tape.adopt(grads)
    mark, known, does = len(tape.calls), len(tape.scalars), tape.does
    # Nothing but what the rule calls is wanted.
    tape.does = Imagined()
    try:
        traced: list[Array] = [array.view(Traced) for array in (whole, grads, *arrays)]
        value, grad, *parts = traced
        scale = group[0].scale
        optimizer.apply_rule(
            numbers.state, value, grad, parts, numbers.penalty, numbers.read(), scale
        )
        made = tape.calls[mark:]
        owners = [(waiting.layer, tape.ref(waiting.value.reshape(-1))) for waiting in group]
        at = tape.ref(whole)
        split = [part for call in made for part in _split(tape, call, at, bounds, owners)]
    except NotRecordableError:
        del tape.calls[mark:]
        del tape.scalars[known:]
        raise
    finally:
        tape.does = does
    tape.calls[mark:] = split
    numbers.scalars = tape.scalars[known:]
    joint = tape.ref(grads).token
    places = zip(tokens, bounds, strict=True)
    return numbers, {token: (joint, start * kind.itemsize) for token, (start, _) in places}


def join_gradients(tape: Tape, moves: Moves) -> None:
    """Let all calls find the gradients where they lie now."""
    if not moves:
        return
    for number, call in enumerate(tape.calls):
        if not moves.keys().isdisjoint(call.writes):
            # A step that is interrupted finds them there.
            call.once = True
        tape.calls[number] = moved(call, moves)


def _side_by_side(
    states: Sequence[ParamState], bounds: Sequence[tuple[int, int]], kind: np.dtype[Any]
) -> list[Array]:
    """Arrays of which the states' own are parts, one a slot."""
    joint: list[Array] = []
    for slot, first in enumerate(states[0].arrays):
        base = first.base
        parts = [state.arrays[slot] for state in states]
        if not isinstance(base, np.ndarray) or not _are_parts(parts, base, bounds):
            base = np.empty(bounds[-1][1], kind)
        joint.append(base)
    for state, (start, end) in zip(states, bounds, strict=True):
        places = [base[start:end] for base in joint]
        if all(_same(own, place) for own, place in zip(state.arrays, places, strict=True)):
            continue
        for place, own in zip(places, state.arrays, strict=True):
            place[...] = own
        state.arrays = places
    return joint


def _are_parts(parts: Sequence[Array], base: Array, bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether an earlier program has laid these arrays, and no others, side by side."""
    if base.shape != (bounds[-1][1],):
        return False
    places = [base[start:end] for start, end in bounds]
    return all(_same(part, place) for part, place in zip(parts, places, strict=True))


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and address(one) == address(other)


def _split(
    tape: Tape,
    call: Call,
    whole: Ref,
    bounds: Sequence[tuple[int, int]],
    owners: Sequence[tuple[str, Ref]],
) -> list[Call]:
    """``call`` once for every parameter where it is about them, else itself."""
    if whole.token not in (*call.reads, *call.writes):
        return [call]
    if not isinstance(call.function, np.ufunc):
        raise NotRecordableError(f"{call.name} of several parameters")
    made = []
    for (start, end), (layer, owner) in zip(bounds, owners, strict=True):

        def place(ref: Ref, start: int = start, end: int = end, owner: Ref = owner) -> Ref:
            if ref.token == whole.token:
                return owner
            if ref.shape != whole.shape:
                return ref
            offset = ref.offset + start * ref.dtype.itemsize
            part = ref._replace(offset=offset, shape=(end - start,))
            if ref in tape.outside:
                tape.outside[part] = tape.outside[ref][start:end]
            return part

        part = placed(call, place, {whole.token: owner.token})
        made.append(replace(part, partly=part.writes, in_place=(), layer=layer))
    return made
