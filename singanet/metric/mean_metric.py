"""Metrics that are means of a value per sample."""

from __future__ import annotations

from abc import abstractmethod

from singanet.metric.metric import Metric
from singanet.ops.interface import Ops
from singanet.types import Array


class MeanMetric(Metric):
    """The mean of `forward` over all samples gathered; a subclass gives `_values`."""

    def forward(self, x: Array, y: Array) -> Array:
        """A value for every sample, shape (B,)."""
        ops, x, y = self._outputs(x, y)
        return self._values(ops, x, y)

    def evaluate(self, x: Array, y: Array) -> float:
        """Mean of `forward`; 0 for an empty batch."""
        values = self.forward(x, y)
        return float(values.mean()) if values.size else 0.0

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._sum = 0.0

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        values = self.forward(x, y)
        self._sum += float(values.sum())
        self.samples += len(values)

    def _result(self) -> float:
        return self._sum / self.samples

    @abstractmethod
    def _values(self, ops: Ops, x: Array, y: Array) -> Array:
        """A float64 value for every sample."""
