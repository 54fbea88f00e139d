"""Share of yes-or-no questions that are answered rightly."""

from __future__ import annotations

from math import prod

from singanet.metric.checks import checked_threshold, yes_or_no
from singanet.metric.metric import MeanMetric
from singanet.ops.interface import Ops
from singanet.types import Array


class BinaryAccuracy(MeanMetric):
    """1 where x > ``threshold`` says what ``y``, 0 or 1, says; a sample's value is the mean.

    ``x`` is (B,) or (B, 1) for one question and (B, ..., C) for C labels; ``y`` has its shape, or
    (B,) for (B, 1). In a net ``x`` is what the loss's link makes of the outputs, so that 0.5 is a
    probability. With ``all_labels`` a sample counts as 1 only where every label is right. A
    score that is not a number says no.
    """

    better = "max"

    linked = True

    def __init__(self, threshold: float = 0.5, all_labels: bool = False) -> None:
        self.threshold = checked_threshold("BinaryAccuracy", threshold)
        self.all_labels = bool(all_labels)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        scores, wanted = yes_or_no("BinaryAccuracy", x, y)
        right = (scores > self.threshold) == wanted
        if self.all_labels:
            right = right.reshape(len(x), prod(x.shape[1:])).all(axis=1)
            return right.astype("float64")
        return right.astype("float64").reshape(x.shape)
