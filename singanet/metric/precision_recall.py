"""How much of what is predicted is right, and how much of what is right is predicted."""

from __future__ import annotations

from singanet.base.arguments import checked_count
from singanet.metric.checks import multi_hot
from singanet.metric.metric import MeanMetric
from singanet.ops.interface import Ops
from singanet.types import Array


class Precision(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / top_k for scores and multi-hot rows (B, C).

    SINGA's definition. Of equal scores the lowest class comes first. ``top_k`` above C counts
    all C classes and still divides by ``top_k``.
    """

    better = "max"

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = checked_count("Precision", "top_k", top_k, 1)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        return hits(ops, x, multi_hot("Precision", x, y), self.top_k) / self.top_k


class Recall(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / |labels| for scores and multi-hot rows (B, C).

    SINGA's definition, but a row without a label counts as 0 instead of dividing by zero. Of
    equal scores the lowest class comes first.
    """

    better = "max"

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = checked_count("Recall", "top_k", top_k, 1)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        labels = multi_hot("Recall", x, y)
        found = hits(ops, x, labels, self.top_k)
        found /= ops.maximum(labels.sum(axis=1), 1)
        return found


def hits(ops: Ops, x: Array, labels: Array, top_k: int) -> Array:
    """How many of the ``top_k`` highest of each row of ``x`` (B, C) are labels, as floats (B,)."""
    xp = ops.xp
    # Stable, so that of equal scores the lowest class comes first.
    first = xp.argsort(-x.astype("float64"), axis=1, kind="stable")[:, :top_k]
    return xp.take_along_axis(labels, first, axis=1).sum(axis=1, dtype="float64")
