"""A power of what is left."""

from __future__ import annotations

from singanet.optimizer.schedules.schedule import Schedule


class Polynomial(Schedule):
    """final + (value − final) (1 − step / steps)^power, then ``final``."""

    def __init__(self, value: float, steps: int, power: float = 1.0, final: float = 0.0) -> None:
        self.value = self._number("value", value)
        self.steps = self._count("steps", steps)
        self.power = self._number("power", power, 0.0)
        self.final = self._number("final", final)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= self.steps:
            return self.final
        left: float = (1.0 - step / self.steps) ** self.power
        return self.final + (self.value - self.final) * left
