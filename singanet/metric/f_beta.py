"""Precision, recall, F-beta and intersection over union, of classes counted over all samples."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, ShapeError, one_of
from singanet.metric.checks import checked_threshold, scored_classes, yes_or_no
from singanet.metric.metric import Metric
from singanet.types import Array

_AVERAGES = ("macro", "micro", "weighted")


class _ByClass(Metric):
    """A ratio of counts for each class, averaged over classes.

    Without ``threshold`` the class of a position is that of its highest score, as for `Accuracy`.
    With one, ``x`` (B,), (B, ..., C) or maps (B, C, H, W) and 0 or 1 in ``y`` have one shape, and a
    label is predicted where x > threshold: in a net of what the loss's link makes of the outputs,
    so that 0.5 is a probability. ``average``: "macro", the mean over classes that occur in targets
    or predictions; "weighted", by how often each is a target; "micro", from the summed counts; None
    gives an array, one value a class. A class that never occurs counts as 0.
    """

    better = "max"

    gathered = ("samples", "_counts")
    linked = True

    def __init__(self, average: str | None = "macro", threshold: float | None = None) -> None:
        where = type(self).__name__
        if average is not None and average not in _AVERAGES:
            raise ArgumentError(
                f"{where}(average=)",
                expected=f"{one_of(_AVERAGES)} or None",
                received=repr(average),
                advice="'macro' gives every class the same say, None a value a class",
            )
        self.average = average
        self.threshold = None if threshold is None else checked_threshold(where, threshold)
        super().__init__()

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._counts: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch."""
        where = type(self).__name__
        ops, x, y = self._outputs(x, y)
        if self.threshold is not None and x.ndim > 3 and x.shape == y.shape:
            # Of maps the labels are the channels, not the columns of the pictures.
            x, y = (ops.xp.moveaxis(each, 1, -1) for each in (x, y))
        if self.threshold is None:
            labels = scored_classes(where, ops, x, y)
            every = ops.xp.arange(x.shape[-1])
            wanted = labels[:, None] == every
            taken = x.reshape(-1, x.shape[-1]).argmax(axis=1)[:, None] == every
        else:
            scores, wanted = yes_or_no(where, x, y)
            taken = scores > self.threshold
        of_rows = x.shape[:1] if self.threshold is not None and x.ndim == 1 else x.shape[:-1]
        weights = self._each_weight(ops, weight, of_rows)
        each = 1 if weights is None else weights[:, None]
        batch = ops.xp.stack(
            [(held * each).sum(axis=0) for held in (wanted & taken, taken, wanted)]
        )
        counts = batch if isinstance(batch, np.ndarray) else batch.get()
        if self._counts is not None and self._counts.shape != counts.shape:
            raise ShapeError(
                where,
                expected=f"{self._counts.size // 3} classes, as in the batches before",
                received=f"outputs of shape {x.shape}",
                advice="reset the metric, or use one for each output",
            )
        self._counts = counts if self._counts is None else self._counts + counts
        self.samples += len(x)

    def compute(self) -> float | Array:
        both, taken, wanted = np.asarray(self._counts, np.float64)
        if self.average == "micro":
            return float(self._ratio(both.sum(), taken.sum(), wanted.sum()))
        scores = self._ratio(both, taken, wanted)
        if self.average is None:
            return scores
        if self.average == "weighted":
            return float((scores * wanted).sum() / max(float(wanted.sum()), 1.0))
        return float(scores.sum() / max(int((taken + wanted > 0).sum()), 1))

    @abstractmethod
    def _ratio(self, both: Array, taken: Array, wanted: Array) -> Array:
        """The measure of counts: rightly predicted, predicted, and there; 0 for none."""


class FBeta(_ByClass):
    """(1 + β²) tp / ((1 + β²) tp + β² fn + fp): the harmonic mean in which recall counts β².

    ``average`` and ``threshold`` are those of `PrecisionScore` (van Rijsbergen 1979).
    """

    def __init__(
        self, beta: float = 1.0, average: str | None = "macro", threshold: float | None = None
    ) -> None:
        if not is_number(beta) or not 0.0 < beta < float("inf"):
            raise ArgumentError(
                f"{type(self).__name__}(beta=)",
                expected="a finite number above 0",
                received=repr(beta),
                advice="2 weighs recall more than precision, 0.5 less",
            )
        self.beta = float(beta)
        super().__init__(average, threshold)

    def _ratio(self, both: Array, taken: Array, wanted: Array) -> Array:
        square = self.beta**2
        return (1.0 + square) * both / _or_one(square * wanted + taken)


class F1(FBeta):
    """2 tp / (2 tp + fp + fn): `FBeta` of 1."""

    def __init__(self, average: str | None = "macro", threshold: float | None = None) -> None:
        super().__init__(1.0, average, threshold)


class PrecisionScore(_ByClass):
    """tp / (tp + fp): how much of what is predicted is right.

    Not SINGA's `Precision`, which looks at the highest scores of a sample. Without ``threshold``
    the class of a position is that of its highest score, as for `Accuracy`. With one, ``x`` (B,)
    or (B, ..., C) and 0 or 1 in ``y`` have one shape, and a label is predicted where
    x > threshold: in a net of what the loss's link makes of the outputs, so that 0.5 is a
    probability. ``average``: "macro", the mean over classes that occur in targets or predictions;
    "weighted", by how often each is a target; "micro", from the summed counts; None gives an
    array, one value a class. A class that never occurs counts as 0.
    """

    def _ratio(self, both: Array, taken: Array, wanted: Array) -> Array:
        return both / _or_one(taken)


class RecallScore(_ByClass):
    """tp / (tp + fn): how much of what is there is predicted.

    Not SINGA's `Recall`, which looks at the highest scores of a sample. ``average`` and
    ``threshold`` are those of `PrecisionScore`.
    """

    def _ratio(self, both: Array, taken: Array, wanted: Array) -> Array:
        return both / _or_one(wanted)


class IOU(_ByClass):
    """tp / (tp + fp + fn): of what is predicted or there, how much is both (Jaccard 1912).

    By default the mean over classes, the usual measure of segmentation. ``average`` and
    ``threshold`` are those of `PrecisionScore`.
    """

    def _ratio(self, both: Array, taken: Array, wanted: Array) -> Array:
        return both / _or_one(taken + wanted - both)


def _or_one(count: Array) -> Array:
    return np.where(count > 0, count, 1.0)
