"""The mean size of the difference."""

from __future__ import annotations

from singanet.loss.targets import real_targets
from singanet.metric.mean_metric import MeanMetric
from singanet.ops.interface import Ops
from singanet.types import Array


class MeanAbsoluteError(MeanMetric):
    """|x − y|, mean over all elements, for ``x`` and ``y`` of one shape (B, ...)."""

    def _values(self, ops: Ops, x: Array, y: Array) -> Array:
        off = ops.absolute(x - real_targets("MeanAbsoluteError", x, y)).astype("float64")
        return off if off.ndim == 1 else off.mean(axis=tuple(range(1, off.ndim)))
