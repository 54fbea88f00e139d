"""Share of samples whose class is among the first."""

from __future__ import annotations

from singanet.base.arguments import checked_count
from singanet.metric.checks import scored_classes
from singanet.metric.metric import MeanMetric
from singanet.ops.interface import Ops
from singanet.types import Array


class Accuracy(MeanMetric):
    """1 where the right class is among the ``top_k`` highest of ``x`` (B, ..., C), else 0.

    ``y`` is integer labels (B, ...) or (B, ..., 1), or rows of the shape of ``x`` whose largest
    element is the class. Of equal scores the lowest class comes first; a score that is not a
    number is never right. For (B, T, C) a sample's value is the mean over its positions.
    """

    better = "max"
    by_rows = ("top_k",)

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = checked_count("Accuracy", "top_k", top_k, 1)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        labels = self.targets(ops, x, y)
        return self.rows(ops, x.reshape(-1, x.shape[-1]), labels).reshape(x.shape[:-1])

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        return scored_classes("Accuracy", ops, x, y)

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        xp = ops.xp
        own = x[xp.arange(len(x)), labels]
        if self.top_k == 1:
            right = x.argmax(axis=1) == labels
        else:
            # Written as "not lower" so that a score that is not a number always counts as ahead.
            ahead = ~(x <= own[:, None])
            ahead |= (x == own[:, None]) & (xp.arange(x.shape[1]) < labels[:, None])
            right = ahead.sum(axis=1) < self.top_k
        right &= own == own
        values: Array = right.astype("float64")
        return values
