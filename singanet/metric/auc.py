"""Areas under the ROC curve, and under precision over recall."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError, ShapeError, brief, one_of
from singanet.loss.loss import checked_ignored, counted_positions
from singanet.metric.metric import Metric
from singanet.types import Array


class AUC(Metric):
    """The probability that a random positive scores above a random negative; ties count half.

    ``x`` is scores (B,), (B, 1), or (B, 2) with the positive class second; ``y`` is 0 and 1, (B,)
    or (B, 1). With ``average`` "macro" x is (B, C) and y (B,) or (B, 1) the classes: each class is
    measured against the rest, by probabilities if the loss has a link, and the result is the mean
    over the classes that occurred. Or y (B, C) is 0 and 1 for each of C labels, and the mean is
    over the labels with both values.

    The result is exact, from all scores in memory: 9 bytes a sample for one column, 17 for two, as
    the difference of probabilities near 0 and 1 would lose digits, 9 C for C classes or labels, and
    8 more with weights. It is NaN before a positive and a negative.

    Args:
        curve: "roc" for the area under the ROC curve, or "pr" for the area under precision over
            recall, as steps: average precision.
        average: "macro" for the mean over classes or labels; None for a single positive class.
        ignore_index: An integer label that does not count, or None; of labels (B, C) an element.

    Examples:
        >>> x, y = np.array([0.9, 0.4, 0.6, 0.2]), np.array([1, 0, 1, 0])
        >>> singanet.metric.AUC().evaluate(x, y)
        1.0
    """

    better = "max"

    gathered = ("samples", "_scores", "_rests", "_positive", "_weight")
    of_none = math.nan

    def __init__(
        self, curve: str = "roc", average: str | None = None, ignore_index: int | None = None
    ) -> None:
        for name, given, known in (
            ("curve", curve, ("roc", "pr")),
            ("average", average, (None, "macro")),
        ):
            if given not in known:
                raise ArgumentError(
                    f"AUC({name}=)",
                    expected=one_of(map(repr, known)),
                    received=brief(given),
                    advice="AUC('pr', average='macro') is the mean of the classes' precision",
                )
        self.curve, self.average = curve, average
        self.ignore_index = checked_ignored("AUC", ignore_index)
        super().__init__()

    @property
    def linked(self) -> bool:  # type: ignore[override]
        """Whether it gets the net's probabilities, which only an average over classes needs."""
        return self.average is not None

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self._scores: list[Array] = []
        self._rests: list[Array] = []
        self._positive: list[Array] = []
        self._weight: list[Array] = []

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        ops, x, y = self._outputs(x, y)
        weights = self._weights(ops, weight, x.shape[:1])
        if self.ignore_index is not None and y.shape in (x.shape[:1], (len(x), 1)):
            given = [] if weights is None else [weights]
            there = y.reshape(-1) != self.ignore_index
            x, y, *given = counted_positions(x, y, there, *given)
            weights = given[0] if given else None
        batch = len(x)
        if weights is not None and not self._weight:
            self._weight.append(np.ones(self.samples))
        if self._weight:
            self._weight.append(np.ones(batch) if weights is None else _on_host(weights))
        if self.average is not None:
            self._gather_classes(x, y)
            return
        if x.shape not in ((batch,), (batch, 1), (batch, 2)) or y.shape not in (
            (batch,),
            (batch, 1),
        ):
            raise ShapeError(
                "AUC",
                expected="scores (B,), (B, 1) or (B, 2) and labels (B,) or (B, 1)",
                received=f"outputs of shape {x.shape} and targets of shape {y.shape}",
                advice="measure one class against the rest at a time",
            )
        if y.dtype.kind not in "fiub" or not bool(((y == 0) | (y == 1)).all()):
            raise DataError(
                "AUC",
                expected="labels 0 and 1",
                received=f"other labels, of type {y.dtype}",
                advice="compare with the positive class: y == 3",
            )
        x, y = map(_on_host, (x, y))
        if x.shape == (batch, 2):
            scores, rest = _difference(x[:, 1].astype(np.float64), x[:, 0].astype(np.float64))
        else:
            scores, rest = x.reshape(-1).astype(np.float64), np.zeros(0)
        self._scores.append(scores)
        self._rests.append(rest)
        self._positive.append(y.reshape(-1).astype(np.bool_))
        self.samples += batch

    def _gather_classes(self, x: Array, y: Array) -> None:
        labels = ((len(x),), (len(x), 1), x.shape)
        if x.ndim != 2 or x.shape[1] < 2 or y.shape not in labels:
            raise ShapeError(
                "AUC(average='macro')",
                expected="scores (B, C) and labels (B,) or (B, 1), or 0 and 1 (B, C)",
                received=f"outputs of shape {x.shape} and targets of shape {y.shape}",
                advice="omit average for one score per sample",
            )
        if y.shape == x.shape:
            known = (y == 0) | (y == 1)
            if self.ignore_index is not None:
                known |= y == self.ignore_index
            if y.dtype.kind not in "fiub" or not bool(known.all()):
                raise DataError(
                    "AUC(average='macro')",
                    expected="labels 0 and 1",
                    received=f"other labels, of type {y.dtype}",
                    advice="give each label of a sample a 0 or a 1",
                )
            found = _on_host(y == 1).astype(np.int8)
            if self.ignore_index is not None:
                found[_on_host(y == self.ignore_index)] = -1
        elif y.dtype.kind in "iu" and bool(((y >= 0) & (y < x.shape[1])).all()):
            found = (_on_host(y).reshape(-1, 1) == np.arange(x.shape[1])).astype(np.int8)
        else:
            raise DataError(
                "AUC(average='macro')",
                expected=f"integer labels from 0 to {x.shape[1] - 1}",
                received=f"other labels, of type {y.dtype}",
                advice="pass one class a sample",
            )
        self._scores.append(_on_host(x).astype(np.float64))
        self._positive.append(found)
        self.samples += len(x)

    def compute(self) -> float:
        scores, positive = np.concatenate(self._scores), np.concatenate(self._positive)
        area = _under_roc if self.curve == "roc" else _average_precision
        own = np.concatenate(self._weight) if self._weight else np.ones(len(scores))
        if self.average is None:
            rests = np.concatenate(self._rests)
            return area(scores, rests if len(rests) == len(scores) else None, positive, own)
        counted = positive[own > 0]
        found = []
        for k in np.flatnonzero((counted == 1).any(axis=0) & (counted == 0).any(axis=0)):
            there = positive[:, k] >= 0
            found.append(area(scores[there, k], None, positive[there, k] == 1, own[there]))
        return float(np.mean(found)) if found else math.nan

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add another metric's state; samples without weights weigh 1 if either has weights."""
        states = self.state(), state
        if any(each["_weight"] for each in states):
            self._weight, other = ([*s["_weight"]] or [np.ones(s["samples"])] for s in states)
            state = {**state, "_weight": other}
        super().merge(state)


def _under_roc(scores: Array, rests: Array | None, positive: Array, own: Array) -> float:
    yes, no = _counts(scores, positive, own)
    if not yes or not no:
        return math.nan
    order, which = _ranked(scores, rests)
    # The Mann-Whitney statistic: the number of lower negatives, and half of the equal ones.
    no_here = np.bincount(which, (own * ~positive)[order])
    lower = (np.cumsum(no_here) - no_here / 2.0)[which]
    return float((own * positive)[order] @ lower / (yes * no))


def _average_precision(scores: Array, rests: Array | None, positive: Array, own: Array) -> float:
    yes, no = _counts(scores, positive, own)
    if not yes or not no:
        return math.nan
    order, which = _ranked(scores, rests)
    # In descending order; equal scores form one step.
    right = np.bincount(which, (own * positive)[order])[::-1]
    predicted = np.cumsum(np.bincount(which, own[order])[::-1])
    counts = predicted > 0
    right, predicted = right[counts], predicted[counts]
    return float((right / yes * np.cumsum(right) / predicted).sum())


def _counts(scores: Array, positive: Array, own: Array) -> tuple[float, float]:
    """Return the weights of positives and negatives; 0 for both if a score is NaN."""
    yes, no = float(own @ positive), float(own @ ~positive)
    return (0.0, 0.0) if np.isnan(scores).any() else (yes, no)


def _ranked(scores: Array, rests: Array | None) -> tuple[Array, Array]:
    """Return the ascending order of the scores, and the rank of each value in it."""
    rests = np.zeros_like(scores) if rests is None else rests
    order = np.lexsort((rests, scores))
    scores, rests = scores[order], rests[order]
    new = (scores[1:] != scores[:-1]) | (rests[1:] != rests[:-1])
    return order, np.concatenate([[0], np.cumsum(new)])


def _on_host(array: Array) -> Array:
    return array if isinstance(array, np.ndarray) else array.get()


def _difference(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a − b rounded, and the rounding error: the exact order of all differences (Knuth)."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = a - b
        part = total - a
        rest = (a - (total - part)) - (b + part)
    return total, np.where(np.isfinite(rest), rest, 0.0)
