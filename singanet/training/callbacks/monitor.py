"""A measure that is watched for getting better."""

from __future__ import annotations

import math
from collections.abc import Iterable

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of

_RISING = ("accuracy", "precision", "recall", "f1", "iou", "auc", "r2")


class Monitor:
    """Knows the best value of ``name`` so far.

    ``mode`` is "min", "max", or "auto": up for accuracies and their like, down for the rest. A
    value is better where it beats the best by more than ``min_delta``; one that is no number
    never is. ``name`` "auto" is ``val_loss``, or ``loss`` where nothing is validated.
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
        self.min_delta = abs(float(min_delta))
        self.best = math.nan

    def begin(self, names: Iterable[str]) -> None:
        """Forget the best, and settle on one of ``names``. Errors: it is not among them."""
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
        self.best = math.nan

    def better(self, value: float) -> bool:
        """Whether ``value`` is the best by far enough; then it is remembered."""
        if math.isnan(value):
            return False
        rising = self.mode == "max" or (
            self.mode == "auto" and self.name.removeprefix("val_").startswith(_RISING)
        )
        gain = value - self.best if rising else self.best - value
        if math.isnan(self.best) or gain > self.min_delta:
            self.best = value
            return True
        return False
