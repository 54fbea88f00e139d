"""Harmonic mean of precision and recall."""

from __future__ import annotations

import numpy as np

from singanet.errors import ArgumentError, ShapeError, one_of
from singanet.metric.checks import multi_hot, scored_classes
from singanet.metric.metric import Metric
from singanet.types import Array

_AVERAGES = ("macro", "micro", "weighted")


class F1(Metric):
    """2 tp / (2 tp + fp + fn) over classes, tp, fp and fn counted over all samples.

    Without ``threshold`` the class of a position is that of its highest score, as for
    `Accuracy`. With one, ``x`` and multi-hot ``y`` have one shape (B, C) and a label is predicted
    where x > threshold. ``average``: "macro", the mean over classes that occur in targets or
    predictions; "weighted", by how often each is a target; "micro", from the summed counts.
    A class that never occurs counts as 0.
    """

    def __init__(self, average: str = "macro", threshold: float | None = None) -> None:
        if average not in _AVERAGES:
            raise ArgumentError(
                "F1(average=)",
                expected=one_of(_AVERAGES),
                received=repr(average),
                advice="'macro' gives every class the same say",
            )
        self.average = average
        self.threshold = threshold
        super().__init__()

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._counts: Array | None = None

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        ops, x, y = self._outputs(x, y)
        if self.threshold is None:
            labels = scored_classes("F1", ops, x, y)
            every = ops.xp.arange(x.shape[-1])
            wanted = labels[:, None] == every
            taken = x.reshape(-1, x.shape[-1]).argmax(axis=1)[:, None] == every
        else:
            wanted = multi_hot("F1", x, y)
            taken = x > self.threshold
        batch = ops.xp.stack([(wanted & taken).sum(axis=0), taken.sum(axis=0), wanted.sum(axis=0)])
        counts = batch if isinstance(batch, np.ndarray) else batch.get()
        if self._counts is not None and self._counts.shape != counts.shape:
            raise ShapeError(
                "F1",
                expected=f"{self._counts.shape[1]} classes, as in the batches before",
                received=f"outputs of shape {x.shape}",
                advice="reset the metric, or use one for each output",
            )
        self._counts = counts if self._counts is None else self._counts + counts
        self.samples += len(x)

    def _result(self) -> float:
        both, taken, wanted = np.asarray(self._counts, np.float64)
        if self.average == "micro":
            return 2.0 * float(both.sum()) / max(float(taken.sum() + wanted.sum()), 1.0)
        scores = 2.0 * both / np.maximum(taken + wanted, 1.0)
        if self.average == "weighted":
            return float((scores * wanted).sum() / max(float(wanted.sum()), 1.0))
        return float(scores.sum() / max(int((taken + wanted > 0).sum()), 1))
