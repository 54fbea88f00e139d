"""Which class is taken for which."""

from __future__ import annotations

import math

import numpy as np

from singanet.errors import ShapeError
from singanet.metric.checks import scored_classes
from singanet.metric.metric import Metric
from singanet.types import Array


class ConfusionMatrix(Metric):
    """`result`: integers (C, C), how many positions of class i (row) are taken for j (column).

    With weights floats, their sums.

    ``x`` (B, ..., C) holds scores, ``y`` integer labels or rows as for `Accuracy`; the class
    taken is the first with the highest score. `evaluate` is the share on the diagonal.
    """

    gathered = ("samples", "counts")

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self.counts: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch."""
        name = type(self).__name__
        ops, x, y = self._outputs(x, y)
        labels = scored_classes(name, ops, x, y)
        classes = x.shape[-1]
        if self.counts is not None and self.counts.shape != (classes, classes):
            raise ShapeError(
                name,
                expected=f"{math.isqrt(self.counts.size)} classes, as in the batches before",
                received=f"outputs of shape {x.shape}",
                advice="reset the metric, or use one for each output",
            )
        taken = x.reshape(-1, classes).argmax(axis=1)
        pairs = ops.xp.bincount(
            labels.astype("int64") * classes + taken,
            self._each_weight(ops, weight, x.shape[:-1]),
            minlength=classes * classes,
        )
        batch = pairs.reshape(classes, classes)
        batch = batch if isinstance(batch, np.ndarray) else batch.get()
        self.counts = batch if self.counts is None else self.counts + batch
        self.samples += len(x)

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> float:
        """Share of this batch's positions on the diagonal; 0 for an empty batch."""
        alone = type(self)()
        alone.update(x, y, weight)
        counts = alone.counts
        if counts is None or not counts.sum():
            return 0.0
        return float(np.trace(counts) / counts.sum())

    def compute(self) -> Array:
        return np.array(self.counts)
