"""The root of the mean squared difference."""

from __future__ import annotations

import math

from singanet.loss.targets import real_targets
from singanet.metric.metric import Metric
from singanet.types import Array


class RootMeanSquaredError(Metric):
    """√ of the mean of (x − y)² over all elements, for ``x`` and ``y`` of one shape (B, ...)."""

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._elements = 0
        self._squares = 0.0

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        ops, x, y = self._outputs(x, y)
        off = (x - real_targets("RootMeanSquaredError", x, y)).astype("float64")
        self._squares += float(ops.square(off).sum())
        self._elements += off.size
        self.samples += len(x)

    def _result(self) -> float:
        return math.sqrt(self._squares / max(self._elements, 1))
