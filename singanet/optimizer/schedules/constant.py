"""No change."""

from __future__ import annotations

from singanet.optimizer.schedules.schedule import Schedule


class Constant(Schedule):
    """``value`` at every step."""

    def __init__(self, value: float) -> None:
        self.value = self._number("value", value)

    def __call__(self, step: int) -> float:
        """The value."""
        return self.value
