"""The optimizer's part of a recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.layer_gradients import LayerGradients
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.state import ParamState
from singanet.program.call import NotRecordableError
from singanet.program.python_pass import RowsSource, sources
from singanet.program.scalars import StepScalar
from singanet.program.tape import Tape
from singanet.program.traced import Traced
from singanet.types import Array, RowSparse


class Numbers:
    """The numbers of one parameter's update, asked of the optimizer anew before each replay."""

    def __init__(self, optimizer: ElementWise, state: ParamState) -> None:
        self.optimizer = optimizer
        self.state = state
        self.arrays = state.arrays
        self.regularizing = _regularizing(state)
        self.penalty, self.values = optimizer._numbers(state, None)
        self.scalars: list[StepScalar] = []
        # What the scalars look at, so that they need not know these numbers in turn.
        self._current = [self.values]

    def holds(self) -> bool:
        """Whether the program's kernels are still right for the parameter."""
        state = self.state
        same = state.arrays is self.arrays and state.constraint is None
        return same and _regularizing(state) == self.regularizing

    def settings(self) -> tuple[Any, ...]:
        """What the numbers depend on; equal ones give equal numbers."""
        state = self.state
        return state.step, state.lr_mult, state.decay_mult

    def asked(self) -> tuple[float, ...]:
        """The numbers of this step."""
        return self.optimizer._numbers(self.state, None)[1]

    def take(self, values: tuple[float, ...]) -> None:
        """Let the kernels of the next replay see ``values``."""
        if values != self.values:
            self.values = values
            self._current[0] = values
            for scalar in self.scalars:
                scalar.refresh()

    def read(self) -> tuple[Any, ...]:
        """The numbers, as scalars that change from step to step."""
        current = self._current

        def reader(k: int) -> StepScalar:
            return StepScalar(lambda: current[0][k])

        return tuple(reader(k) for k in range(len(self.values)))


def refresh(every: Sequence[Numbers]) -> None:
    """Ask for the numbers of this step, once for all parameters that have the same."""
    before: tuple[Any, ...] = ()
    values: tuple[float, ...] = ()
    for numbers in every:
        settings = numbers.settings()
        if settings != before:
            before, values = settings, numbers.asked()
        numbers.take(values)


def _regularizing(state: ParamState) -> tuple[Any, ...] | None:
    """What makes the penalty, which is no number of the step but a constant of the kernels."""
    regularizer = state.regularizer
    if regularizer is None:
        return None
    return regularizer, regularizer.coefficient, state.penalty_mult


class Updates:
    """Writes the update of each layer's parameters on the tape, and undoes what it did."""

    def __init__(self, tape: Tape, optimizer: Any) -> None:
        self.tape = tape
        self.optimizer = optimizer
        self.numbers: list[Numbers] = []
        self.reasons: list[str] = []

    def record(self, item: LayerGradients) -> None:
        """The update with the gradients that a backward walk yielded."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        if not item.names:
            return
        why = self._refuses()
        if why is not None:
            self._in_python(list(item.names), list(item.values), list(item.grads), why)
            return
        for name, value, grad in zip(*item, strict=True):
            self.optimizer._state(name)
            why = self._unfit(name, grad) or self._kernels(name, value, grad)
            if why is not None:
                self._in_python([name], [value], [grad], why)

    def _refuses(self) -> str | None:
        """Why no update of this optimizer is recorded, if so."""
        kind = type(self.optimizer)
        if not isinstance(self.optimizer, ElementWise):
            return f"{kind.__name__} is not element by element"
        if kind.__module__.partition(".")[0] != "singanet":
            return f"{kind.__name__} is not singanet's"
        return None

    def _unfit(self, name: str, grad: Any) -> str | None:
        """Why the update of this parameter is not recorded, if so."""
        if isinstance(grad, RowSparse):
            return "rows of a table"
        state = self.optimizer._states[name]
        if state.constraint is not None:
            return "it has a constraint"
        scheduled = callable(getattr(state.regularizer, "coefficient", None))
        return "its regularizer is scheduled" if scheduled else None

    def _kernels(self, name: str, value: Array, grad: Any) -> str | None:
        """Record the rule's kernels; why not, where that fails."""
        mark, known = len(self.tape.calls), len(self.tape.scalars)
        self.optimizer._settle(name, value)
        numbers = Numbers(self.optimizer, self.optimizer._states[name])
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
        self.numbers.append(numbers)
        return None

    def _in_python(self, names: list[str], values: list[Array], grads: list[Any], why: str) -> None:
        self.reasons.append(f"{', '.join(names)}: {why}")
        optimizer, given = self.optimizer, sources(grads)
        dense = [grad for grad in given if not isinstance(grad, RowsSource)]
        # No array of the recording stays in the program.
        rows = [grad if isinstance(grad, RowsSource) else None for grad in given]

        def update(arrays: list[Array]) -> None:
            rest = iter(arrays)
            now = [next(rest) if source is None else source.now() for source in rows]
            optimizer.update(names, values, now)

        call = self.tape.add(
            update, (dense,), {}, values, "hidden", changes=True, name="python step"
        )
        call.barrier = True
