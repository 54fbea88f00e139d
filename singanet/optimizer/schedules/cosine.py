"""Half a cosine wave down."""

from __future__ import annotations

import math

from singanet.optimizer.schedules.schedule import Schedule


class Cosine(Schedule):
    """final + (value − final) (1 + cos(π step / steps)) / 2, then ``final`` (Loshchilov 2017)."""

    def __init__(self, value: float, steps: int, final: float = 0.0) -> None:
        self.value = self._number("value", value)
        self.steps = self._count("steps", steps)
        self.final = self._number("final", final)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        part = min(step / self.steps, 1.0)
        return self.final + (self.value - self.final) * (1.0 + math.cos(math.pi * part)) / 2.0
