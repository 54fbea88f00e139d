"""Drops when a metric stands still."""

from __future__ import annotations

import math
from collections.abc import Mapping

from singanet.errors import ArgumentError, DataError, one_of
from singanet.optimizer.schedules.schedule import Schedule


class Plateau(Schedule):
    """``value`` times ``factor`` after each ``patience`` observations without improvement.

    Call ``observe(metric)`` once an epoch. An observation improves on the best by more than
    ``threshold`` of it (mode "min": below best − threshold |best|; "max": above), or with
    ``absolute`` by more than ``threshold`` itself. The count starts anew after a drop, and once
    ``cooldown`` observations have gone by. Keras waits as long, PyTorch's ReduceLROnPlateau one
    observation longer. What was learnt is part of the optimizer's state.
    """

    _moving = ("value", "best", "waited", "resting")

    def __init__(
        self,
        value: float,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        lowest: float = 0.0,
        mode: str = "min",
        cooldown: int = 0,
        absolute: bool = False,
    ) -> None:
        self.value = self._first = self._number("value", value)
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
        self.mode, self.sign = mode, 1.0 if mode == "min" else -1.0
        self.cooldown = self._count("cooldown", cooldown, 0)
        self.absolute = bool(absolute)
        self.best = math.inf
        self.waited = self.resting = 0

    def __call__(self, step: int) -> float:
        """The value now, whatever the step."""
        return self.value

    def observe(self, metric: float) -> None:
        """Take the metric of an epoch; one that is not a number is no improvement."""
        seen = self.sign * float(metric)
        # An infinite best stays so: infinity times zero would be none.
        unit = 1.0 if self.absolute or not math.isfinite(self.best) else abs(self.best)
        if self.resting:
            self.resting, self.waited = self.resting - 1, 0
        if seen < self.best - self.threshold * unit:
            self.best, self.waited = seen, 0
            return
        if self.resting:
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.value = max(self.value * self.factor, min(self.lowest, self.value))
            self.waited, self.resting = 0, self.cooldown

    def restart(self) -> None:
        """Begin anew, as for another net."""
        self.value, self.best = self._first, math.inf
        self.waited = self.resting = 0

    def state_dict(self) -> dict[str, float]:
        """Value, best observation, observations since, and how many of a rest are left."""
        counts = {"waited": float(self.waited), "resting": float(self.resting)}
        return {"value": self.value, "best": self.best, **counts}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where another one stood."""
        if sorted(state) != ["best", "resting", "value", "waited"]:
            raise DataError(
                "Plateau.load_state_dict",
                expected="'best', 'resting', 'value' and 'waited'",
                received=one_of(sorted(state)) or "nothing",
                advice="load what Plateau.state_dict gave",
            )
        self.value, self.best = float(state["value"]), float(state["best"])
        self.waited, self.resting = int(state["waited"]), int(state["resting"])
