"""One update of parameters that are neighbours in a bucket, as are their state and gradients.

An element-wise rule treats them as one parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from singanet.base.addresses import address
from singanet.engine.memory import root_of
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.scale import is_one
from singanet.optimizer.state import ParamState
from singanet.optimizer.together import are_neighbours, onwards
from singanet.params.storage import Place
from singanet.program.ir import Call, NotRecordableError
from singanet.program.relocate import moved
from singanet.program.trace.evaluator import AbstractEvaluator
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import traced
from singanet.program.trace.update_scalars import Numbers
from singanet.types import Array

Moves = dict[int, tuple[int, int]]
"""By token: the token in which it lies instead, and from which byte on."""


class Waiting(NamedTuple):
    """A parameter of ``layer`` whose update waits for others; ``place`` is where its value lies.

    A gradient that was ``summed`` is a part of a buffer, where it stays.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Array
    scale: Any = 1.0
    place: Place | None = None
    summed: bool = False

    def fits(self, tape: Tape, moves: Moves) -> bool:
        """Whether the value lies in a bucket, and the gradient may lie beside others."""
        value, grad = self.value, self.grad
        if (
            self.place is None
            or not getattr(value.flags, "writeable", True)
            or grad.dtype != value.dtype
            or not grad.flags.c_contiguous
        ):
            return False
        if self.summed:
            return True
        number = tape.ref(grad).token
        token = tape.tokens[number]
        planned = token.held is None and token.writes and token.nbytes == grad.nbytes
        return bool(planned) and number not in moves

    @property
    def bucket(self) -> Array | None:
        """The flat array in which the value lies."""
        return None if self.place is None else self.place.bucket

    def precedes(self, other: Waiting) -> bool:
        """Whether ``other`` comes next in the bucket, its state too, and has the same numbers."""
        scales = self.scale is other.scale or (is_one(self.scale) and is_one(other.scale))
        beside = not self.summed or (
            root_of(self.grad) is root_of(other.grad)
            and address(self.grad) + self.grad.nbytes == address(other.grad)
        )
        return (
            scales and beside and are_neighbours(self.place, self.state, other.place, other.state)
        )


def joint_update(tape: Tape, rule: ElementWise, run: Sequence[Waiting]) -> tuple[Numbers, Moves]:
    """Write the update of ``run`` on the tape: its numbers, and where its gradients are to lie.

    Raises `NotRecordableError` where two of them have one gradient.
    """
    summed = run[0].summed
    tokens = [] if summed else [tape.ref(waiting.grad).token for waiting in run]
    if len(set(tokens)) < len(tokens):
        raise NotRecordableError("a gradient of two parameters")
    first, last = run[0].place, run[-1].place
    assert first is not None
    assert last is not None
    value = first.bucket[first.start : last.stop]
    if summed:
        grads = onwards(run[0].grad, value.size, root_of(run[0].grad))
    else:
        grads = np.empty_like(tape.near(value))
        tape.adopt(grads)
    numbers = Numbers(rule, [waiting.state for waiting in run])
    mark, known, evaluator = len(tape.calls), len(tape.scalars), tape.evaluator
    # Nothing but what the rule calls is wanted.
    tape.evaluator = AbstractEvaluator()
    try:
        slots = [onwards(array, value.size, array.base) for array in numbers.state.arrays]
        near: list[Array] = [traced(tape, array) for array in (value, grads, *slots)]
        w, g, *arrays = near
        scale = run[0].scale
        rule.apply_rule(ParamUpdate(numbers.state, w, g, arrays, *numbers.read(), scale))
    except NotRecordableError:
        del tape.calls[mark:]
        del tape.scalars[known:]
        raise
    finally:
        tape.evaluator = evaluator
    numbers.scalars = tape.scalars[known:]
    joint, moves, start = tape.ref(grads).token, {}, 0
    for token, waiting in zip(tokens, () if summed else run, strict=True):
        moves[token] = joint, start
        start += waiting.value.nbytes
    return numbers, moves


def with_gradients_joined(calls: Sequence[Call], moves: Moves) -> list[Call]:
    """``calls`` with the gradients at the places that ``moves`` gives them."""
    for call in calls:
        if not moves.keys().isdisjoint(call.writes):
            # A step that is interrupted finds them there.
            call.once = True
    return [moved(call, moves) for call in calls]
