"""Metrics of classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.errors import ArgumentError, DataError, ShapeError, brief, one_of
from singanet.loss.loss import checked_ignored, class_labels
from singanet.metric.metric import MeanMetric, Metric
from singanet.ops.interface import Ops
from singanet.types import Array


def scored_classes(
    where: str, ops: Ops, x: Array, y: Array, ignore: int | None = None
) -> tuple[Array, Array | None]:
    """Return labels (N,) for scores ``x`` (..., C), from integers or from rows in x's shape.

    The second is False for labels equal to ``ignore``, or None if all count, as of rows.
    """
    if x.ndim < 2 or x.shape[-1] == 0:
        raise DataError(
            where,
            expected="outputs of shape (batch, ..., classes)",
            received=f"outputs of shape {x.shape}",
            advice="end the net in a layer with one output for every class",
        )
    if x.shape[-1] == 1:
        raise DataError(
            where,
            expected="scores of two or more classes",
            received=f"outputs of shape {x.shape}, whose only class is always the highest",
            advice="measure a yes-or-no output by BinaryAccuracy(), or F1(threshold=0.5)",
        )
    if y.ndim == x.ndim and y.shape[-1] == x.shape[-1]:
        if y.shape != x.shape:
            raise _other_shape(where, x, y)
        return _only_class(where, y.reshape(-1, y.shape[-1])), None
    return class_labels(where, ops, x, y, ignore)


def _only_class(where: str, rows: Array) -> Array:
    """Return the class of each of ``rows``, the index of its largest element."""
    if rows.dtype.kind not in "fiub":
        raise _no_numbers(where, rows)
    ones = (rows == 1).sum(axis=1)
    wrong = (ones > 1) | ~(rows > 0).any(axis=1)
    if bool(wrong.any()):
        index = int(wrong.argmax())
        raise DataError(
            where,
            expected="target rows of one class each",
            received=f"a row of {int(ones[index])} classes at index {index}",
            advice="measure several labels a sample by BinaryAccuracy(), or F1(threshold=0.5)",
        )
    return rows.argmax(axis=1)


def yes_or_no(
    where: str, ops: Ops, x: Array, y: Array, ignore: int | None
) -> tuple[Array, Array, Array | None]:
    """Return scores and booleans, both (N, C), for ``x`` (B,) or (B, ..., C) and ``y`` alike.

    ``y`` may also be (B,) for ``x`` (B, 1). The third is False for targets equal to ``ignore``, or
    None if all count. Errors: other shapes, targets other than 0 and 1.
    """
    if y.shape != x.shape and not (x.shape == (len(y), 1) and y.ndim == 1):
        raise ShapeError(
            where,
            expected=f"targets of the outputs' shape {x.shape}",
            received=f"targets of shape {y.shape}",
            advice="give every output a 0 or a 1; measure integer classes by Accuracy()",
        )
    classes = x.shape[-1] if x.ndim > 1 else 1
    yes, there = _booleans(where, ops, y, ignore)
    there = None if there is None else there.reshape(-1, classes)
    return x.reshape(-1, classes), yes.reshape(-1, classes), there


def checked_threshold(where: str, threshold: Any) -> float:
    """Return ``threshold`` as a float. Errors: it is not a finite number."""
    if not is_number(threshold) or not math.isfinite(threshold):
        raise ArgumentError(
            f"{where}(threshold=)",
            expected="a finite number",
            received=brief(threshold),
            advice="0.5 is usual for probabilities, 0 for scores",
        )
    return float(threshold)


def multi_hot(where: str, ops: Ops, x: Array, y: Array, ignore: int | None) -> tuple[Array, Array]:
    """Return scores and booleans (B, C); the score of an ignored label is the lowest."""
    if x.ndim != 2 or y.shape != x.shape:
        raise _other_shape(where, x, y)
    yes, there = _booleans(where, ops, y, ignore)
    return x if there is None else ops.where(there, x, -math.inf), yes


def _booleans(where: str, ops: Ops, y: Array, ignore: int | None) -> tuple[Array, Array | None]:
    """Return where ``y`` is 1, and where it is not ``ignore``, None if that is None."""
    if y.dtype.kind not in "fiub":
        raise _no_numbers(where, y)
    there = None
    if ignore is not None:
        there = y != ignore
        y = ops.where(there, y, 0)
    yes = y == 1
    wrong = ~(yes | (y == 0))
    if bool(wrong.any()):
        raise DataError(
            where,
            expected="targets that are 0 or 1",
            received=f"{float(y[wrong][0]):g}",
            advice="compare first, as in y > 0.5; targets without a meaning by ignore_index=",
        )
    return yes, there


def _no_numbers(where: str, y: Array) -> DataError:
    return DataError(
        where,
        expected="rows of 0 and 1",
        received=f"targets of type {y.dtype}",
        advice="pass booleans, integers or floats",
    )


def _other_shape(where: str, x: Array, y: Array) -> ShapeError:
    return ShapeError(
        where,
        expected="targets of the shape (batch, classes) of the outputs",
        received=f"targets of shape {y.shape} for outputs of shape {x.shape}",
        advice="give every sample a row with an element for every class",
    )


class Accuracy(MeanMetric):
    """1 if the true class is among the ``top_k`` highest of ``x`` (B, ..., C), otherwise 0.

    ``y`` is integer labels (B, ...) or (B, ..., 1), or rows in the shape of ``x`` whose largest
    element is the class. Of equal scores the lowest class comes first; a NaN score is never right.
    For (B, T, C) a sample's value is the mean over its positions.

    Args:
        top_k: Positive int, the number of highest scores.
        ignore_index: An integer label, whose positions do not count, or None.

    Examples:
        >>> x, y = np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1])
        >>> singanet.metric.Accuracy().evaluate(x, y)
        0.5
    """

    better = "max"
    by_rows = ("top_k", "ignore_index")

    def __init__(self, top_k: int = 1, ignore_index: int | None = None) -> None:
        self.top_k = checked_count("Accuracy", "top_k", top_k, 1)
        self.ignore_index = checked_ignored("Accuracy", ignore_index)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        labels = self.targets(ops, x, y)
        return self.rows(ops, x.reshape(-1, x.shape[-1]), labels).reshape(x.shape[:-1])

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        return scored_classes("Accuracy", ops, x, y, self.ignore_index)[0]

    def _where_counted(self, found: Array, y: Array) -> Array | None:
        if self.ignore_index is None or y.size != found.size:
            return None
        there: Array = y.reshape(found.shape) != self.ignore_index
        return there

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        xp = ops.xp
        own = x[xp.arange(len(x)), labels]
        if self.top_k == 1:
            right = x.argmax(axis=1) == labels
        else:
            # Written as "not lower or equal", so that NaN always counts as ahead.
            ahead = ~(x <= own[:, None])
            ahead |= (x == own[:, None]) & (xp.arange(x.shape[1]) < labels[:, None])
            right = ahead.sum(axis=1) < self.top_k
        right &= own == own
        values: Array = right.astype("float64")
        return values


class BinaryAccuracy(MeanMetric):
    """1 if x > ``threshold`` agrees with ``y``, 0 or 1; a sample's value is the mean.

    ``x`` is (B,) or (B, 1) for one output and (B, ..., C) for C labels; ``y`` has its shape, or
    (B,) for (B, 1). In a net ``x`` is the output after the loss's link. A NaN score is a 0.

    Args:
        threshold: Finite number; 0.5 is a probability.
        all_labels: Whether a sample counts as 1 only if every label is right, otherwise as 0.
        ignore_index: An integer target, whose elements do not count, or None.

    Examples:
        >>> x, y = np.array([0.9, 0.4, 0.6, 0.2]), np.array([1, 0, 0, 0])
        >>> singanet.metric.BinaryAccuracy().evaluate(x, y)
        0.75
    """

    better = "max"

    linked = True

    def __init__(
        self, threshold: float = 0.5, all_labels: bool = False, ignore_index: int | None = None
    ) -> None:
        self.threshold = checked_threshold("BinaryAccuracy", threshold)
        self.ignore_index = checked_ignored("BinaryAccuracy", ignore_index)
        self.all_labels = bool(all_labels)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        scores, wanted, there = yes_or_no("BinaryAccuracy", ops, x, y, self.ignore_index)
        right = (scores > self.threshold) == wanted
        if self.all_labels:
            if there is not None:
                right |= ~there
            right = right.reshape(len(x), prod(x.shape[1:])).all(axis=1)
            return right.astype("float64")
        return right.astype("float64").reshape(x.shape)

    def _where_counted(self, found: Array, y: Array) -> Array | None:
        return _any_counted(self.ignore_index, found, y)


def _any_counted(ignore: int | None, found: Array, y: Array) -> Array | None:
    """Return True for each of ``found`` with targets ``y`` of which one is not ``ignore``."""
    if ignore is None:
        return None
    there: Array = (y != ignore).reshape(*found.shape, y.size // max(found.size, 1)).any(axis=-1)
    return there


class ConfusionMatrix(Metric):
    """The counts (C, C) of positions of class i (row) that are predicted as class j (column).

    `result` is integers, or with weights floats, their sums. ``x`` (B, ..., C) are scores, ``y``
    integer labels or rows as for `Accuracy`; the predicted class is the first with the highest
    score. `evaluate` is the fraction on the diagonal.

    Args:
        ignore_index: An integer label, whose positions do not count, or None.

    Examples:
        >>> metric = singanet.metric.ConfusionMatrix()
        >>> metric.update(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1]))
        >>> metric.result()
        array([[1, 0],
               [1, 0]])
    """

    gathered = ("samples", "counts")

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = checked_ignored("ConfusionMatrix", ignore_index)
        super().__init__()

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self.counts: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        pairs, sums = self._pairs(x, y, weight)
        classes = x.shape[-1]
        if self.counts is not None and self.counts.shape != (classes, classes):
            raise ShapeError(
                type(self).__name__,
                expected=f"{math.isqrt(self.counts.size)} classes, as in earlier batches",
                received=f"outputs of shape {x.shape}",
                advice="reset the metric, or use one for each output",
            )
        if self.counts is None:
            self.counts = np.zeros((classes, classes), sums.dtype)
        elif sums.dtype.kind == "f" != self.counts.dtype.kind:
            self.counts = self.counts.astype(sums.dtype)
        # A batch has few of the pairs if there are many classes.
        self.counts.reshape(-1)[pairs] += sums.astype(self.counts.dtype)
        self.samples += len(x)

    def evaluate(self, x: Array, y: Array, weight: Array | None = None) -> float:
        """Return the fraction of this batch's positions on the diagonal; 0 for an empty batch."""
        pairs, sums = self._pairs(x, y, weight)
        total = sums.sum()
        return float(sums[pairs % (x.shape[-1] + 1) == 0].sum() / total) if total else 0.0

    def _pairs(self, x: Array, y: Array, weight: Array | None) -> tuple[Array, Array]:
        """Return the flat indices of a batch in the counts, each once, and what they get."""
        ops, x, y = self._outputs(x, y)
        labels, there = scored_classes(type(self).__name__, ops, x, y, self.ignore_index)
        predicted = x.reshape(-1, x.shape[-1]).argmax(axis=1)
        found = labels.astype("int64") * x.shape[-1] + predicted
        weights = self._each_weight(ops, weight, x.shape[:-1])
        if there is not None:
            found, weights = found[there], None if weights is None else weights[there]
        pairs, places = ops.xp.unique(found, return_inverse=True)
        sums = ops.xp.bincount(places, weights, minlength=len(pairs))
        on_host = isinstance(sums, np.ndarray)
        return (pairs, sums) if on_host else (pairs.get(), sums.get())

    def compute(self) -> Array:
        return np.array(self.counts)


class Precision(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / top_k for scores and multi-hot rows (B, C).

    SINGA's definition. Of equal scores the lowest class comes first. A ``top_k`` above C counts all
    C classes and divides by ``top_k``.

    Args:
        top_k: Positive int, the number of highest scores.
        ignore_index: An integer target or None. Its classes are not among the highest scores of the
            sample, and a sample with no other target does not count.

    Examples:
        >>> x, y = np.array([[0.9, 0.5, 0.1]]), np.array([[1, 0, 1]])
        >>> singanet.metric.Precision(top_k=2).evaluate(x, y)
        0.5
    """

    better = "max"

    def __init__(self, top_k: int = 1, ignore_index: int | None = None) -> None:
        self.top_k = checked_count("Precision", "top_k", top_k, 1)
        self.ignore_index = checked_ignored("Precision", ignore_index)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        x, labels = multi_hot("Precision", ops, x, y, self.ignore_index)
        return hits(ops, x, labels, self.top_k) / self.top_k

    def _where_counted(self, found: Array, y: Array) -> Array | None:
        return _any_counted(self.ignore_index, found, y)


class Recall(MeanMetric):
    """|the ``top_k`` highest scores ∩ labels| / |labels| for scores and multi-hot rows (B, C).

    SINGA's definition, except that a row without a label counts as 0 instead of dividing by zero.
    Of equal scores the lowest class comes first.

    Args:
        top_k: Positive int, the number of highest scores.
        ignore_index: An integer target or None. Its classes are not among the highest scores of the
            sample, and a sample with no other target does not count.

    Examples:
        >>> x, y = np.array([[0.9, 0.5, 0.1]]), np.array([[1, 0, 1]])
        >>> singanet.metric.Recall(top_k=2).evaluate(x, y)
        0.5
    """

    better = "max"

    def __init__(self, top_k: int = 1, ignore_index: int | None = None) -> None:
        self.top_k = checked_count("Recall", "top_k", top_k, 1)
        self.ignore_index = checked_ignored("Recall", ignore_index)
        super().__init__()

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        x, labels = multi_hot("Recall", ops, x, y, self.ignore_index)
        found = hits(ops, x, labels, self.top_k)
        found /= ops.maximum(labels.sum(axis=1), 1)
        return found

    def _where_counted(self, found: Array, y: Array) -> Array | None:
        return _any_counted(self.ignore_index, found, y)


def hits(ops: Ops, x: Array, labels: Array, top_k: int) -> Array:
    """Return how many of the ``top_k`` highest of each row of ``x`` (B, C) are labels, (B,)."""
    xp = ops.xp
    # A stable sort, so that of equal scores the lowest class comes first.
    first = xp.argsort(-x.astype("float64"), axis=1, kind="stable")[:, :top_k]
    return xp.take_along_axis(labels, first, axis=1).sum(axis=1, dtype="float64")


_AVERAGES = ("macro", "micro", "weighted")


class _ByClass(Metric):
    """A ratio of counts for each class, averaged over classes.

    Without ``threshold`` the class of a position is the one with its highest score, as for
    `Accuracy`. With one, ``x`` (B,), (B, ..., C) or maps (B, C, H, W) and 0 or 1 in ``y`` have one
    shape, and a label is predicted if x > threshold: in a net x is the output after the loss's
    link, so 0.5 is a probability. ``average``: "macro", the mean over classes that occur in targets
    or predictions; "weighted", by the frequency in targets; "micro", from the summed counts; None
    returns an array, one value a class. A class that never occurs counts as 0.
    """

    better = "max"

    gathered = ("samples", "_counts")
    linked = True

    def __init__(
        self,
        average: str | None = "macro",
        threshold: float | None = None,
        ignore_index: int | None = None,
    ) -> None:
        where = type(self).__name__
        if average is not None and average not in _AVERAGES:
            raise ArgumentError(
                f"{where}(average=)",
                expected=f"{one_of(_AVERAGES)} or None",
                received=brief(average),
                advice="'macro' weighs all classes equally, None returns a value a class",
            )
        self.average = average
        self.threshold = None if threshold is None else checked_threshold(where, threshold)
        self.ignore_index = checked_ignored(where, ignore_index)
        super().__init__()

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self._counts: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        where = type(self).__name__
        ops, x, y = self._outputs(x, y)
        if self.threshold is not None and x.ndim > 3 and x.shape == y.shape:
            # The labels of maps are their channels, not their columns.
            x, y = (ops.xp.moveaxis(each, 1, -1) for each in (x, y))
        if self.threshold is None:
            labels, there = scored_classes(where, ops, x, y, self.ignore_index)
            there = None if there is None else there[:, None]
            every = ops.xp.arange(x.shape[-1])
            wanted = labels[:, None] == every
            predicted = x.reshape(-1, x.shape[-1]).argmax(axis=1)[:, None] == every
        else:
            scores, wanted, there = yes_or_no(where, ops, x, y, self.ignore_index)
            predicted = scores > self.threshold
        if there is not None:
            wanted, predicted = wanted & there, predicted & there
        of_rows = x.shape[:1] if self.threshold is not None and x.ndim == 1 else x.shape[:-1]
        weights = self._each_weight(ops, weight, of_rows)
        each = 1 if weights is None else weights[:, None]
        batch = ops.xp.stack(
            [(marked * each).sum(axis=0) for marked in (wanted & predicted, predicted, wanted)]
        )
        counts = batch if isinstance(batch, np.ndarray) else batch.get()
        if self._counts is not None and self._counts.shape != counts.shape:
            raise ShapeError(
                where,
                expected=f"{self._counts.size // 3} classes, as in earlier batches",
                received=f"outputs of shape {x.shape}",
                advice="reset the metric, or use one for each output",
            )
        self._counts = counts if self._counts is None else self._counts + counts
        self.samples += len(x)

    def compute(self) -> float | Array:
        both, predicted, wanted = np.asarray(self._counts, np.float64)
        if self.average == "micro":
            return float(self._ratio(both.sum(), predicted.sum(), wanted.sum()))
        scores = self._ratio(both, predicted, wanted)
        if self.average is None:
            return scores
        if self.average == "weighted":
            return float((scores * wanted).sum() / max(float(wanted.sum()), 1.0))
        return float(scores.sum() / max(int((predicted + wanted > 0).sum()), 1))

    @abstractmethod
    def _ratio(self, both: Array, predicted: Array, wanted: Array) -> Array:
        """Return the measure from true positives, predictions and targets; 0 for none."""


class FBeta(_ByClass):
    """(1 + β²) tp / ((1 + β²) tp + β² fn + fp): the harmonic mean that weighs recall by β².

    van Rijsbergen 1979.

    Args:
        beta: β, above 0; 2 weighs recall more than precision, 0.5 less.
        average: "macro", "weighted", "micro" or None, as for `PrecisionScore`.
        threshold: Finite number above which a label is predicted; None for the highest score.
        ignore_index: An integer label, with ``threshold`` a target, that does not count, or None.

    Examples:
        >>> x = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> round(singanet.metric.FBeta(beta=2.0).evaluate(x, np.array([0, 1, 1])), 4)
        0.6944
    """

    def __init__(
        self,
        beta: float = 1.0,
        average: str | None = "macro",
        threshold: float | None = None,
        ignore_index: int | None = None,
    ) -> None:
        if not is_number(beta) or not 0.0 < beta < float("inf"):
            raise ArgumentError(
                f"{type(self).__name__}(beta=)",
                expected="a finite number above 0",
                received=brief(beta),
                advice="2 weighs recall more than precision, 0.5 less",
            )
        self.beta = float(beta)
        super().__init__(average, threshold, ignore_index)

    def _ratio(self, both: Array, predicted: Array, wanted: Array) -> Array:
        square = self.beta**2
        return (1.0 + square) * both / _or_one(square * wanted + predicted)


class F1(FBeta):
    """2 tp / (2 tp + fp + fn): `FBeta` with β = 1.

    Args:
        average: "macro", "weighted", "micro" or None, as for `PrecisionScore`.
        threshold: Finite number above which a label is predicted; None for the highest score.
        ignore_index: An integer label, with ``threshold`` a target, that does not count, or None.

    Examples:
        >>> x = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> round(singanet.metric.F1().evaluate(x, np.array([0, 1, 1])), 4)
        0.6667
    """

    def __init__(
        self,
        average: str | None = "macro",
        threshold: float | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(1.0, average, threshold, ignore_index)


class PrecisionScore(_ByClass):
    """tp / (tp + fp): the fraction of predictions that are right.

    SINGA's `Precision` differs: it counts the highest scores of a sample. Without ``threshold`` the
    class of a position is the one with its highest score, as for `Accuracy`. With one, ``x`` (B,)
    or (B, ..., C) and 0 or 1 in ``y`` have one shape, and a label is predicted if x > threshold: in
    a net x is the output after the loss's link, so 0.5 is a probability. A class that never occurs
    counts as 0.

    Args:
        average: "macro", the mean over classes that occur in targets or predictions; "weighted", by
            the frequency in targets; "micro", from the summed counts; None for an array, one value
            a class.
        threshold: Finite number above which a label is predicted; None for the highest score.
        ignore_index: An integer label, with ``threshold`` a target, that does not count, or None.

    Examples:
        >>> x = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> round(singanet.metric.PrecisionScore().evaluate(x, np.array([0, 1, 1])), 4)
        0.75
    """

    def _ratio(self, both: Array, predicted: Array, wanted: Array) -> Array:
        return both / _or_one(predicted)


class RecallScore(_ByClass):
    """tp / (tp + fn): the fraction of targets that are predicted.

    SINGA's `Recall` differs: it counts the highest scores of a sample.

    Args:
        average: "macro", "weighted", "micro" or None, as for `PrecisionScore`.
        threshold: Finite number above which a label is predicted; None for the highest score.
        ignore_index: An integer label, with ``threshold`` a target, that does not count, or None.

    Examples:
        >>> x = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> round(singanet.metric.RecallScore().evaluate(x, np.array([0, 1, 1])), 4)
        0.75
    """

    def _ratio(self, both: Array, predicted: Array, wanted: Array) -> Array:
        return both / _or_one(wanted)


class IOU(_ByClass):
    """tp / (tp + fp + fn): intersection over union of predictions and targets (Jaccard 1912).

    By default the mean over classes (mIoU), the usual measure of segmentation.

    Args:
        average: "macro", "weighted", "micro" or None, as for `PrecisionScore`.
        threshold: Finite number above which a label is predicted; None for the highest score.
        ignore_index: An integer label, with ``threshold`` a target, that does not count, or None.

    Examples:
        >>> x = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> round(singanet.metric.IOU().evaluate(x, np.array([0, 1, 1])), 4)
        0.5
    """

    def _ratio(self, both: Array, predicted: Array, wanted: Array) -> Array:
        return both / _or_one(predicted + wanted - both)


def _or_one(count: Array) -> Array:
    return np.where(count > 0, count, 1.0)
