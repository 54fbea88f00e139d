"""Drops when a metric stands still."""

from __future__ import annotations

import math
from collections.abc import Mapping

from singanet.errors import ArgumentError, DataError, one_of
from singanet.optimizer.schedules.schedule import Schedule


class Plateau(Schedule):
    """``value`` times ``factor`` after each ``patience`` observations without improvement.

    Call ``observe(metric)`` once an epoch. An observation improves on the best by more than
    ``threshold`` of it (mode "min": below best − threshold |best|; "max": above). The count
    starts anew after a drop. Keras waits as long, PyTorch's ReduceLROnPlateau one observation
    longer. What was learnt is part of the optimizer's state.
    """

    def __init__(
        self,
        value: float,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        lowest: float = 0.0,
        mode: str = "min",
    ) -> None:
        self.value = self._number("value", value)
        self.factor = self._number("factor", factor, 0.0, 1.0)
        self.patience = self._count("patience", patience, 0)
        self.threshold = self._number("threshold", threshold, 0.0)
        self.lowest = self._number("lowest", lowest)
        if mode not in ("min", "max"):
            raise ArgumentError(
                "Plateau(mode=)",
                expected="'min' or 'max'",
                received=repr(mode),
                advice="'min' for a loss, 'max' for an accuracy",
            )
        self.sign = 1.0 if mode == "min" else -1.0
        self.best = math.inf
        self.waited = 0

    def __call__(self, step: int) -> float:
        """The value now, whatever the step."""
        return self.value

    def observe(self, metric: float) -> None:
        """Take the metric of an epoch; one that is not a number is no improvement."""
        seen = self.sign * float(metric)
        bound = (
            self.best - self.threshold * abs(self.best) if math.isfinite(self.best) else self.best
        )
        if seen < bound:
            self.best, self.waited = seen, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.value = max(self.value * self.factor, min(self.lowest, self.value))
            self.waited = 0

    def state_dict(self) -> dict[str, float]:
        """Value, best observation and observations since."""
        return {"value": self.value, "best": self.best, "waited": float(self.waited)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where another one stood."""
        if sorted(state) != ["best", "value", "waited"]:
            raise DataError(
                "Plateau.load_state_dict",
                expected="'best', 'value' and 'waited'",
                received=one_of(sorted(state)) or "nothing",
                advice="load what Plateau.state_dict gave",
            )
        self.value, self.best = float(state["value"]), float(state["best"])
        self.waited = int(state["waited"])
