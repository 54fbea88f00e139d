"""How much of what is predicted is right."""

from __future__ import annotations

from singanet.metric.checks import checked_top_k, multi_hot
from singanet.metric.mean_metric import MeanMetric
from singanet.metric.top import hits
from singanet.ops.interface import Ops
from singanet.types import Array


class Precision(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / top_k for scores and multi-hot rows (B, C).

    SINGA's definition. Of equal scores the lowest class comes first. ``top_k`` above C counts
    all C classes and still divides by ``top_k``.
    """

    def __init__(self, top_k: int = 1) -> None:
        self.top_k = checked_top_k("Precision", top_k)
        super().__init__()

    def _values(self, ops: Ops, x: Array, y: Array) -> Array:
        return hits(ops, x, multi_hot("Precision", x, y), self.top_k) / self.top_k
