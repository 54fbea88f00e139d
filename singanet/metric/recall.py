"""How much of what is right is predicted."""

from __future__ import annotations

from singanet.metric.checks import checked_top_k, multi_hot
from singanet.metric.mean_metric import MeanMetric
from singanet.metric.top import hits
from singanet.ops.interface import Ops
from singanet.types import Array


class Recall(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / |labels| for scores and multi-hot rows (B, C).

    SINGA's definition, but a row without a label counts as 0 instead of dividing by zero. Of
    equal scores the lowest class comes first.
    """

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = checked_top_k("Recall", top_k)
        super().__init__()

    def _values(self, ops: Ops, x: Array, y: Array) -> Array:
        labels = multi_hot("Recall", x, y)
        found = hits(ops, x, labels, self.top_k)
        found /= ops.maximum(labels.sum(axis=1), 1)
        return found
