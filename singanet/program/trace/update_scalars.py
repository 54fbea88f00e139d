"""The numbers of the optimizer's rule, which may be others at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.optimizer.together import bounds_of, has_own_schedules, is_own_schedule
from singanet.program.trace.traced import StepScalar
from singanet.types import Array

_SETTINGS = attrgetter("step", "lr_mult", "decay_mult", "regularizer", "constraint")


class Numbers:
    """The numbers of one update, asked of the optimizer anew before each replay.

    The update is of one parameter, or of several whose settings and steps are the same.
    """

    def __init__(self, optimizer: Optimizer, states: Sequence[ParamState]) -> None:
        self.optimizer = optimizer
        # Whether the update ends the step of its parameters.
        self.counts = True
        self.state = states[0]
        self.states = tuple(states)
        self._kept = [(state, state.arrays, bounds_of(state)) for state in states]
        self._plain = all(bounds is None for _, _, bounds in self._kept)
        with _schedules_held(optimizer, self.state.regularizer):
            self.penalty, self.values = optimizer.numbers(self.state)
        self.scalars: list[StepScalar] = []
        # What the scalars look at, so that they need not know these numbers in turn.
        self._current = [(self.penalty, self.values)]
        # What all of them show, None while they are refreshed: an interrupt may leave some behind.
        self._shown: tuple[float, tuple[float, ...]] | None = self._current[0]

    @property
    def arrays(self) -> list[Array]:
        """The state arrays of all parameters."""
        return [array for _, arrays, _ in self._kept for array in arrays]

    @property
    def lost(self) -> bool:
        """Whether state was dropped or loaded: other arrays are there, for good."""
        return any(state.held is not arrays for state, arrays, _ in self._kept)

    def holds(self) -> bool:
        """Whether the program's kernels are still right for the parameters."""
        state = self.state
        if self._plain:
            now = state.step, state.lr_mult, state.decay_mult, None, None
            for state, arrays, _ in self._kept:
                if _SETTINGS(state) != now or state.held is not arrays:
                    return False
            return True
        step, rate, decay, *_ = self.settings()
        for state, arrays, bounds in self._kept:
            bare = state.regularizer is None and state.constraint is None
            if (
                state.held is not arrays
                or state.step != step
                or state.lr_mult != rate
                or state.decay_mult != decay
                or ((bounds is not None or not bare) and bounds_of(state) != bounds)
            ):
                return False
        return True

    def settings(self) -> tuple[Any, ...]:
        """The settings that the numbers depend on; equal ones give equal numbers."""
        state = self.state
        return state.step, state.lr_mult, state.decay_mult, state.penalty_mult, state.regularizer

    def asked(self) -> tuple[float, tuple[float, ...]]:
        """The numbers of this step."""
        return self.optimizer.numbers(self.state)

    def take(self, numbers: tuple[float, tuple[float, ...]]) -> None:
        """Let the kernels of the next replay see ``numbers``."""
        if numbers != self._shown:
            self._shown = None
            self.penalty, self.values = self._current[0] = numbers
            for scalar in self.scalars:
                scalar.refresh()
            self._shown = numbers

    def advance(self) -> None:
        """Count a step."""
        for state in self.states:
            state.step += self.counts

    def read(self) -> tuple[Any, tuple[Any, ...]]:
        """The numbers, as scalars that change from step to step."""
        current = self._current

        def reader(k: int) -> StepScalar:
            return StepScalar(lambda: current[0][1][k])

        penalty: Any = self.penalty
        if self.state.is_scheduled:
            penalty = StepScalar(lambda: current[0][0])
        # What is true or false belongs to the optimizer's case.
        return penalty, tuple(
            v if isinstance(v, bool) else reader(k) for k, v in enumerate(self.values)
        )


@contextmanager
def _schedules_held(optimizer: Optimizer, regularizer: Regularizer | None) -> Iterator[None]:
    """Numbers in the place of the user's schedules, which recording does not ask."""
    owners: list[tuple[Any, str]] = [(optimizer, name) for name in optimizer.hypers]
    owners.append((regularizer, "coefficient"))
    every = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
    own = [(owner, name, value) for owner, name, value in every if is_own_schedule(value)]
    try:
        for owner, name, _ in own:
            setattr(owner, name, 0.5)
        yield
    finally:
        for owner, name, value in own:
            setattr(owner, name, value)


def refresh(every: Sequence[Numbers]) -> None:
    """Ask for the numbers of this step, once for all parameters that have the same."""
    before: tuple[Any, ...] = ()
    found: tuple[float, tuple[float, ...]] = 0.0, ()
    for numbers in every:
        settings = numbers.settings()
        if settings != before or has_own_schedules(numbers.optimizer, settings[-1]):
            before, found = settings, numbers.asked()
        numbers.take(found)
