"""The numbers of the optimizer's rule, which may be others at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.state import ParamState
from singanet.program.guard import is_library
from singanet.program.recording.scalars import StepScalar
from singanet.types import Array

_SETTINGS = attrgetter("step", "lr_mult", "decay_mult", "regularizer", "constraint")


class Numbers:
    """The numbers of one update, asked of the optimizer anew before each replay.

    The update is of one parameter, or of several whose settings and steps are the same.
    """

    def __init__(self, optimizer: ElementWise, states: Sequence[ParamState]) -> None:
        self.optimizer = optimizer
        self.state = states[0]
        self.states = tuple(states)
        self._kept = [(state, state.arrays, _regularizing(state)) for state in states]
        self._plain = all(regularizing is None for _, _, regularizing in self._kept)
        with _schedules_held(optimizer):
            self.penalty, self.values = optimizer._numbers(self.state, None)
        self.scalars: list[StepScalar] = []
        # What the scalars look at, so that they need not know these numbers in turn.
        self._current = [self.values]

    @property
    def arrays(self) -> list[Array]:
        """The state arrays of all parameters."""
        return [array for _, arrays, _ in self._kept for array in arrays]

    def holds(self) -> bool:
        """Whether the program's kernels are still right for the parameters."""
        state = self.state
        if self._plain:
            now = state.step, state.lr_mult, state.decay_mult, None, None
            for state, arrays, _ in self._kept:
                if _SETTINGS(state) != now or state.arrays is not arrays:
                    return False
            return True
        step, rate, decay = self.settings()
        for state, arrays, regularizing in self._kept:
            if (
                state.arrays is not arrays
                or state.constraint is not None
                or state.step != step
                or state.lr_mult != rate
                or state.decay_mult != decay
                or (
                    (regularizing is not None or state.regularizer is not None)
                    and _regularizing(state) != regularizing
                )
            ):
                return False
        return True

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

    def advance(self) -> None:
        """Count a step."""
        for state in self.states:
            state.step += 1

    def read(self) -> tuple[Any, ...]:
        """The numbers, as scalars that change from step to step."""
        current = self._current

        def reader(k: int) -> StepScalar:
            return StepScalar(lambda: current[0][k])

        return tuple(reader(k) for k in range(len(self.values)))


def alike(state: ParamState) -> tuple[Any, ...]:
    """What parameters have to have in common to have the same numbers."""
    return state.step, state.lr_mult, state.decay_mult, _regularizing(state)


def has_own_schedules(optimizer: ElementWise) -> bool:
    """Whether a schedule is a user's: it may count, so it is asked as often as by the layers."""
    values = (getattr(optimizer, name) for name in optimizer.hypers)
    return any(callable(value) and not is_library(type(value)) for value in values)


@contextmanager
def _schedules_held(optimizer: ElementWise) -> Iterator[None]:
    """Numbers in the place of the user's schedules, which recording does not ask."""
    values = {name: getattr(optimizer, name) for name in optimizer.hypers}
    own = {n: v for n, v in values.items() if callable(v) and not is_library(type(v))}
    try:
        for name in own:
            setattr(optimizer, name, 0.5)
        yield
    finally:
        for name, value in own.items():
            setattr(optimizer, name, value)


def refresh(every: Sequence[Numbers]) -> None:
    """Ask for the numbers of this step, once for all parameters that have the same."""
    before: tuple[Any, ...] = ()
    values: tuple[float, ...] = ()
    for numbers in every:
        settings = numbers.settings()
        if settings != before or has_own_schedules(numbers.optimizer):
            before, values = settings, numbers.asked()
        numbers.take(values)


def _regularizing(state: ParamState) -> tuple[Any, ...] | None:
    """What makes the penalty, which is no number of the step but a constant of the kernels."""
    regularizer = state.regularizer
    if regularizer is None:
        return None
    return regularizer, regularizer.coefficient, state.penalty_mult
