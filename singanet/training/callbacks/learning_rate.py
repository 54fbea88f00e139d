"""The learning rate by epoch."""

from __future__ import annotations

from collections.abc import Callable

from singanet.errors import ArgumentError
from singanet.training.callbacks.callback import Callback


class LearningRate(Callback):
    """Sets the optimizer's rate to ``schedule(epoch)`` at the beginning of every epoch.

    For schedules of the step give the optimizer one of `singanet.optimizer.schedules` instead.
    """

    def __init__(self, schedule: Callable[[int], float]) -> None:
        if not callable(schedule):
            raise ArgumentError(
                "LearningRate",
                expected="a function of the epoch",
                received=repr(schedule),
                advice="write LearningRate(lambda epoch: 0.1 * 0.9**epoch)",
            )
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int) -> None:
        """Set the rate. Errors: one that is no finite number >= 0."""
        rate = self.schedule(epoch)
        if not isinstance(rate, (int, float)) or not 0.0 <= rate < float("inf"):
            raise ArgumentError(
                f"LearningRate, epoch {epoch}",
                expected="a finite rate >= 0",
                received=repr(rate),
                advice="mend the schedule",
            )
        self.session.rule.lr = float(rate)
