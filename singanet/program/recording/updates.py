"""The optimizer's part of a recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.errors import SingaNetError
from singanet.optimizer import Optimizer
from singanet.optimizer.checks import check_fit
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.state import ParamState
from singanet.params.gradients import LayerGradients
from singanet.program.call import NotRecordableError, Ref
from singanet.program.guard import Guard, is_library, is_patched
from singanet.program.recording.joint import Waiting, join_gradients, joint_update
from singanet.program.recording.live_rows import RowsSource, source_of, sources
from singanet.program.recording.moved import relocated
from singanet.program.recording.python_pass import is_sparse
from singanet.program.recording.rule_numbers import Numbers, alike, has_own_schedules
from singanet.program.recording.tape import Tape
from singanet.program.recording.traced import Traced
from singanet.program.recording.users import is_own
from singanet.types import Array

_SMALL, _TOGETHER = 1 << 16, 1 << 17
"""Bytes of a parameter that waits for others, and of those that wait."""


@dataclass
class Member:
    """A parameter that recorded kernels update: its ``layer``, and where its gradient lies."""

    layer: str
    state: ParamState
    value: Array
    grad: Ref | None


class Updates:
    """Writes the update of each layer's parameters on the tape, and undoes what it did.

    Small parameters wait, to be updated together. `finish` has to be called at the end.
    """

    def __init__(self, tape: Tape, optimizer: Any, guard: Guard) -> None:
        self.tape = tape
        self.guard = guard
        self.optimizer = optimizer
        self.numbers: list[Numbers] = []
        self.members: list[list[Member]] = []
        self.reasons: list[str] = []
        self._waiting_bytes = 0
        self._refused = self._refuses()
        self._recordable: bool | None = None
        self._waiting: dict[Any, list[Waiting]] = {}
        self._moves: dict[int, tuple[int, int]] = {}

    def record(self, item: LayerGradients) -> None:
        """The update with the gradients that a backward walk yielded."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        why = self._refused
        if why is not None:
            # A layer without parameters too: what a user writes may count.
            self._in_python(list(item.names), list(item.values), list(item.grads), why)
            return
        for name, value, grad in zip(*item, strict=True):
            self.optimizer._state(name)
            why = self._unfit(name, value, grad)
            if why is None and not is_sparse(grad) and self._waits(name, value, grad):
                continue
            source = source_of(grad)
            if why is None and source is not None:
                self._rows(name, value, source)
                continue
            why = why or self._kernels(name, value, grad)
            if why is not None:
                self._in_python([name], [value], [grad], why)

    def finish(self) -> None:
        """Write down the updates that wait, and lay their gradients side by side."""
        self._update_waiting()
        join_gradients(self.tape, self._moves)
        for member in (m for members in self.members for m in members):
            if member.grad is not None:
                member.grad = relocated(member.grad, self._moves)

    def _waits(self, name: str, value: Array, grad: Any) -> bool:
        """Let the update wait for others, where it can be made together with them."""
        if value.nbytes > _SMALL or has_own_schedules(self.optimizer):
            return False
        if self._recordable is None:
            self._recordable = self._is_recordable(name, value, grad)
        if not self._recordable:
            return False
        self.optimizer._settle(name, value)
        state = self.optimizer._states[name]
        waiting = Waiting(self.tape.layer, state, value, grad)
        if not waiting.fits(self.tape, self._moves):
            return False
        if self._waiting_bytes + value.nbytes > _TOGETHER:
            self._update_waiting()
        self._waiting_bytes += value.nbytes
        self._waiting.setdefault((value.dtype, alike(state)), []).append(waiting)
        return True

    def _is_recordable(self, name: str, value: Array, grad: Any) -> bool:
        """Whether the rule leaves kernels, of which no trace stays here."""
        tape = self.tape
        calls, scalars, numbers = len(tape.calls), len(tape.scalars), len(self.numbers)
        recorded = self._kernels(name, value, grad) is None
        del tape.calls[calls:], tape.scalars[scalars:]
        del self.numbers[numbers:], self.members[numbers:]
        return recorded

    def _update_waiting(self) -> None:
        groups, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        now = self.tape.layer, self.tape.phase
        for group in groups.values():
            if len(group) > 1:
                self.tape.layer, self.tape.phase = "", "update"
                try:
                    numbers, moves = joint_update(self.tape, self.optimizer, group)
                except NotRecordableError:
                    pass
                else:
                    self._add(numbers, group)
                    self._moves |= moves
                    continue
            for waiting in group:
                self.tape.layer, self.tape.phase = waiting.layer, "update"
                name = waiting.state.name
                why = self._kernels(name, waiting.value, waiting.grad)
                if why is not None:
                    self._in_python([name], [waiting.value], [waiting.grad], why)
        self.tape.layer, self.tape.phase = now

    def _refuses(self) -> str | None:
        """Why no update of this optimizer is recorded, if so."""
        kind = type(self.optimizer)
        if not isinstance(self.optimizer, ElementWise):
            return f"{kind.__name__} is not element by element"
        if not is_library(kind):
            return f"{kind.__name__} is not singanet's"
        if is_patched(self.optimizer):
            return f"a method of this {kind.__name__} was replaced"
        self.guard.part(self.optimizer)
        return None

    def _unfit(self, name: str, value: Array, grad: Any) -> str | None:
        """Why the update of this parameter is not recorded, if so."""
        if is_sparse(grad) and source_of(grad) is None:
            return "rows of a table"
        state = self.optimizer._states[name]
        if state.constraint is not None:
            return "it has a constraint"
        if is_sparse(grad) and type(self.optimizer).update is not Optimizer.update:
            return "its optimizer looks at rows before"
        if state.regularizer is not None:
            if not is_own(state.regularizer):
                return "its regularizer is not singanet's"
            self.guard.part(state.regularizer)
        try:
            check_fit("", name, value, value if is_sparse(grad) else grad, state.shape)
        except SingaNetError as error:
            return str(error)
        scheduled = callable(getattr(state.regularizer, "coefficient", None))
        return "its regularizer is scheduled" if scheduled else None

    def _kernels(self, name: str, value: Array, grad: Any) -> str | None:
        """Record the rule's kernels; why not, where that fails."""
        mark, known = len(self.tape.calls), len(self.tape.scalars)
        self.optimizer._settle(name, value)
        numbers = Numbers(self.optimizer, [self.optimizer._states[name]])
        does = self.tape.does
        before = [does.copied(array, array.dtype, "K") for array in (value, *numbers.arrays)]
        try:
            self.optimizer._sweep(
                numbers.state,
                value.view(Traced),
                grad,
                [array.view(Traced) for array in numbers.arrays],
                numbers.penalty,
                numbers.read(),
                1.0,
            )
        except NotRecordableError as error:
            del self.tape.calls[mark:]
            del self.tape.scalars[known:]
            return str(error)
        finally:
            for array, old in zip((value, *numbers.arrays), before, strict=True):
                does.run(np.copyto, array, old)
        numbers.scalars = self.tape.scalars[known:]
        self._add(numbers, [Waiting(self.tape.layer, numbers.state, value, grad)])
        return None

    def _add(self, numbers: Numbers, group: Sequence[Waiting]) -> None:
        self.numbers.append(numbers)
        self.members.append(
            [Member(w.layer, w.state, w.value, self.tape.ref(w.grad)) for w in group]
        )

    def _rows(self, name: str, value: Array, source: RowsSource) -> None:
        """Record the update of those rows of a table that ``source`` has."""
        optimizer = self.optimizer
        optimizer._settle(name, value)
        numbers = Numbers(optimizer, [optimizer._states[name]])

        def update() -> None:
            now = numbers.state, value, source.now(), numbers.penalty, numbers.values, 1.0
            optimizer._sweep_rows(*now)

        call = self.tape.add(update, (), {}, [value], "hidden", changes=True, name="update rows")
        call.barrier = True
        self.numbers.append(numbers)
        self.members.append([Member(self.tape.layer, numbers.state, value, None)])

    def _in_python(self, names: list[str], values: list[Array], grads: list[Any], why: str) -> None:
        if names:
            self.reasons.append(f"{', '.join(names)}: {why}")
        optimizer, given = self.optimizer, sources(grads)
        dense = [grad for grad in given if not isinstance(grad, RowsSource)]
        # No array of the recording stays in the program.
        rows = [grad if isinstance(grad, RowsSource) else None for grad in given]

        def update(arrays: list[Array]) -> None:
            rest = iter(arrays)
            # Lists and arrays of its own: the optimizer may keep them, or change them.
            now = [next(rest).copy() if source is None else source.now() for source in rows]
            optimizer.update(names.copy(), values.copy(), now)

        call = self.tape.add(
            update, (dense,), {}, values, "hidden", changes=True, name="python step"
        )
        call.barrier = True
