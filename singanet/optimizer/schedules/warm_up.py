"""A rise before another schedule."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.optimizer.hyper import Hyper, Learning, at
from singanet.optimizer.schedules.schedule import Schedule


class WarmUp(Schedule):
    """``after``, a number or schedule, begun by a straight rise over ``steps``.

    Step t < steps gives start + (after(0) − start) (t + 1) / (steps + 1): the first update moves
    a little, and the rise arrives where ``after`` begins, which sees step − steps.
    """

    def __init__(self, after: Hyper, steps: int, start: float = 0.0) -> None:
        if not callable(after):
            after = self._number("after", after)
        self.after = after
        self.steps = self._count("steps", steps, 0)
        self.start = self._number("start", start)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= self.steps:
            return at(self.after, step - self.steps)
        rise = (step + 1) / (self.steps + 1)
        return self.start + (at(self.after, 0) - self.start) * rise

    def state_dict(self) -> dict[str, float]:
        """The learnt state of the schedule after it."""
        return dict(self.after.state_dict()) if isinstance(self.after, Learning) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Hand ``state`` to the schedule after it."""
        if isinstance(self.after, Learning):
            self.after.load_state_dict(state)
