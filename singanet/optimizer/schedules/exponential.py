"""Decay by a constant factor."""

from __future__ import annotations

from singanet.optimizer.schedules.schedule import Schedule


class Exponential(Schedule):
    """value · rate^(step / steps), or with ``staircase`` rate^⌊step / steps⌋ (SINGA's)."""

    def __init__(self, value: float, steps: int, rate: float, staircase: bool = False) -> None:
        self.value = self._number("value", value)
        self.steps = self._count("steps", steps)
        self.rate = self._number("rate", rate, 0.0)
        self.staircase = bool(staircase)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        times = step // self.steps if self.staircase else step / self.steps
        return float(self.value * self.rate**times)
