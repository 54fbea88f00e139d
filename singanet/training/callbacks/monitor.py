"""A measure that is watched for getting better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of


class Monitor:
    """Knows the best value of ``name`` so far.

    ``mode`` is "min", "max", or "auto": losses are better the lower they are, and of a metric its
    class says it (`Metric.better`); of anything else nobody knows. A value is better where it
    beats the best by more than ``min_delta``; one that is no number never is. ``name`` "auto" is
    ``val_loss``, or ``loss`` where nothing is validated.
    """

    def __init__(self, where: str, name: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ArgumentError(
                f"{where}, mode",
                expected="'auto', 'min' or 'max'",
                received=repr(mode),
                advice="'min' for a loss, 'max' for an accuracy",
            )
        self._where = where
        self.name = name
        self.mode = mode
        self.direction = "min" if mode == "auto" else mode
        self.min_delta = abs(float(min_delta))
        self.best = math.nan

    def begin(self, names: Iterable[str], metrics: Mapping[str, Any] | None = None) -> None:
        """Forget the best, and settle on one of ``names``, some of which are of ``metrics``.

        Errors: it is not among them, or ``mode`` is "auto" and nobody knows what is better.
        """
        known = list(names)
        if self.name == "auto":
            self.name = "val_loss" if "val_loss" in known else "loss"
        if self.name not in known:
            raise UnknownNameError(
                f"{self._where}, monitor",
                expected=f"one of {one_of(known)}",
                received=repr(self.name),
                advice="pass validation_data to net.fit"
                if self.name.startswith("val_") and "val_loss" not in known
                else did_you_mean(self.name, known, "choose one of these"),
            )
        self.direction = self._asked(metrics or {}) if self.mode == "auto" else self.mode
        self.best = math.nan

    def _asked(self, metrics: Mapping[str, Any]) -> str:
        """Whether more or less is better, as who measures it says."""
        name = self.name.removeprefix("val_")
        if name not in metrics and (name == "loss" or name.endswith("_loss")):
            return "min"
        metric = metrics.get(name)
        found: str | None = getattr(metric, "better", None)
        if found in ("min", "max"):
            return found
        what = f"a {type(metric).__name__}, whose class does not say" if metric else "no metric"
        raise ArgumentError(
            f"{self._where}, mode",
            expected=f"'min' or 'max' for {self.name!r}, since nobody knows which is better",
            received=f"'auto', where it is {what}",
            advice="pass mode='max' if more is better"
            + (f", or write better = 'max' in the class {type(metric).__name__}" if metric else ""),
        )

    def better(self, value: float) -> bool:
        """Whether ``value`` is the best by far enough; then it is remembered."""
        if math.isnan(value):
            return False
        gain = value - self.best if self.direction == "max" else self.best - value
        if math.isnan(self.best) or gain > self.min_delta:
            self.best = value
            return True
        return False
