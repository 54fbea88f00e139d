"""Drops at given steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from singanet.errors import ArgumentError
from singanet.optimizer.schedules.schedule import Schedule


class MultiStep(Schedule):
    """value · factor^(number of ``milestones`` reached); a milestone is a step."""

    def __init__(self, value: float, milestones: Sequence[int], factor: float = 0.1) -> None:
        self.value = self._number("value", value)
        self.milestones = [self._count("milestones", m, 0) for m in milestones]
        self.factor = self._number("factor", factor, 0.0)
        if self.milestones != sorted(self.milestones):
            raise ArgumentError(
                "MultiStep(milestones=)",
                expected="steps that rise",
                received=repr(list(milestones)),
                advice="sort them",
            )

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        return self.value * self.factor ** bisect_right(self.milestones, step)
