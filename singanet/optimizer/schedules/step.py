"""Drops at even distances."""

from __future__ import annotations

from singanet.optimizer.schedules.schedule import Schedule


class Step(Schedule):
    """value · factor^⌊step / every⌋."""

    def __init__(self, value: float, every: int, factor: float = 0.1) -> None:
        self.value = self._number("value", value)
        self.every = self._count("every", every)
        self.factor = self._number("factor", factor, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        return self.value * self.factor ** (step // self.every)
