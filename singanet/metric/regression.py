"""Metrics of real values, of texts and of edits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from singanet.base.arguments import checked_count
from singanet.errors import DataError, ShapeError
from singanet.loss.ctc import best_path
from singanet.loss.loss import checked_ignored, class_labels, real_targets
from singanet.metric.metric import MeanMetric, Metric
from singanet.ops import ops_for
from singanet.ops.interface import Ops
from singanet.types import Array


class MeanAbsoluteError(MeanMetric):
    """|x − y|, mean over all elements, for ``x`` and ``y`` of one shape (B, ...).

    Examples:
        >>> x, y = np.array([[1.0], [3.0]]), np.array([[0.0], [0.0]])
        >>> singanet.metric.MeanAbsoluteError().evaluate(x, y)
        2.0
    """

    better = "min"

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        off: Array = ops.absolute(x - real_targets("MeanAbsoluteError", x, y))
        return off.astype("float64")


class RootMeanSquaredError(MeanMetric):
    """√ of the mean of (x − y)² over all elements, for ``x`` and ``y`` of one shape (B, ...).

    Examples:
        >>> x, y = np.array([[3.0], [3.0]]), np.array([[0.0], [0.0]])
        >>> singanet.metric.RootMeanSquaredError().evaluate(x, y)
        3.0
    """

    better = "min"

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return the squares; see `MeanMetric`."""
        off = (x - real_targets("RootMeanSquaredError", x, y)).astype("float64")
        square: Array = ops.square(off)
        return square

    def _of_mean(self, mean: float) -> float:
        """Return the square root of the mean."""
        return math.sqrt(mean)


class R2(Metric):
    """1 − Σ (y − x)² / Σ (y − ȳ)², mean over the elements of a sample, each with its own ȳ.

    ``x`` and ``y`` have one shape (B, ...). An element with a constant target counts as 1 if it is
    predicted exactly, otherwise as 0.

    Examples:
        >>> x, y = np.array([[1.0], [2.0], [2.5]]), np.array([[1.0], [2.0], [3.0]])
        >>> singanet.metric.R2().evaluate(x, y)
        0.875
    """

    better = "max"

    gathered = ("samples", "_count", "_mean", "_spread", "_error")
    of_none = math.nan

    def reset(self) -> None:
        """Reset the state."""
        self.samples, self._count = 0, 0.0
        self._mean: Array | None = None
        self._spread: Array | None = None
        self._error: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        ops, x, y = self._outputs(x, y)
        y = real_targets("R2", x, y).astype("float64")
        if self._mean is not None and self._mean.shape != y.shape[1:]:
            raise ShapeError(
                "R2",
                expected=f"samples of shape {self._mean.shape}, as in earlier batches",
                received=f"samples of shape {y.shape[1:]}",
                advice="reset the metric, or use one for each output",
            )
        weights = self._weights(ops, weight, x.shape[:1])
        count = len(y) if weights is None else float(weights.sum())
        each = 1.0 if weights is None else weights.reshape(-1, *(1 for _ in y.shape[1:]))
        if not count:
            self.samples += len(y)
            return
        mean = (y * each).sum(axis=0) / count
        spread = ((y - mean) ** 2 * each).sum(axis=0)
        gathered = {"samples": len(y), "_count": count, "_mean": mean, "_spread": spread}
        self.merge({**gathered, "_error": ((y - x) ** 2 * each).sum(axis=0)})

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add a state as in Chan et al. (1979): sums of squares of raw targets would cancel."""
        self.samples += state["samples"]
        if not state["_count"]:
            return
        before, self._count = self._count, self._count + state["_count"]
        mean, spread, error = state["_mean"], state["_spread"], state["_error"]
        if before:
            shift, share = mean - self._mean, state["_count"] / self._count
            spread = spread + self._spread + shift**2 * (before * share)
            error = error + self._error
            mean = self._mean + shift * share
        self._mean, self._spread, self._error = mean, spread, error

    def compute(self) -> float:
        if self._spread is None or self._error is None:
            return math.nan
        flat = self._spread <= 0
        share = 1.0 - self._error / (self._spread + flat)
        share = share * ~flat + flat * (self._error <= 0)
        return float(share.mean())


_AT_A_TIME = 1 << 20
"""The scores whose probabilities are computed at a time, at least a row."""


class Perplexity(Metric):
    """exp of the mean cross-entropy in nats over all positions of scores ``x`` (B, ..., C).

    ``y`` is integer labels (B, ...) or (B, ..., 1).

    Args:
        ignore_index: An integer label whose positions do not count, or None.

    Examples:
        >>> x, y = np.array([[0.0, 0.0]]), np.array([0])
        >>> singanet.metric.Perplexity().evaluate(x, y)
        2.0
    """

    better = "min"

    by_rows = ("ignore_index",)
    gathered = ("samples", "positions", "_nats", "_count")
    of_none = 1.0

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = checked_ignored("Perplexity", ignore_index)
        super().__init__()

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self.positions = 0
        self._nats = self._count = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        ops, x, y = self._outputs(x, y)
        if x.ndim < 2 or x.shape[-1] == 0 or x.dtype.kind != "f":
            raise DataError(
                "Perplexity",
                expected="float outputs of shape (batch, ..., classes)",
                received=f"outputs of type {x.dtype} and shape {x.shape}",
                advice="pass the scores before the softmax",
            )
        labels = self.targets(ops, x, y)
        nats = self.rows(ops, x.reshape(-1, x.shape[-1]), labels)
        self.gather(nats.reshape(x.shape[:-1]), y, weight)

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        return class_labels("Perplexity", ops, x, y, self.ignore_index)[0]

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        """Return the cross-entropy of each row, computed in parts to save memory."""
        count = max(1, _AT_A_TIME // x.shape[1])
        parts = [slice(start, start + count) for start in range(0, max(len(x), 1), count)]
        found = [ops.softmax_cross_entropy(x[part], labels[part])[0] for part in parts]
        return found[0] if len(found) == 1 else ops.concat(found, axis=0)

    def gather(self, found: Array, y: Array, weight: Array | None = None) -> None:
        ops, nats = ops_for(found), found.reshape(-1)
        mask = None if self.ignore_index is None else y.reshape(-1) != self.ignore_index
        if mask is not None:
            nats = ops.where(mask, nats, 0)
        positions = nats.size if mask is None else int(mask.sum())
        weights = self._each_weight(ops, weight, found.shape)
        if weights is not None:
            nats = nats * weights
            weights = weights if mask is None else weights * mask
        self._nats += float(nats.sum(dtype="float64"))
        self._count += positions if weights is None else float(weights.sum())
        self.positions += positions
        self.samples += len(found)

    def compute(self) -> float:
        mean = self._nats / (self._count or 1.0)
        return math.exp(mean) if mean < 700 else math.inf


class LabelErrorRate(Metric):
    """The edit distance from decoded to true labels, relative to the number of true labels.

    Outputs are the scores (B, T, C) of `CTC`, decoded by their best path, or decoded labels (B,
    S'); targets (B, S) and labels are filled up with ``padding``. An edit inserts, deletes or
    replaces a label (Levenshtein 1966). For words or characters it is the word or character error
    rate; it may exceed 1.

    Args:
        blank: Int from 0, the class of the blank in scores.
        padding: The label that fills targets and decoded labels up.

    Examples:
        >>> x, y = np.array([[1, 2, -1]]), np.array([[1, 3, -1]])
        >>> singanet.metric.LabelErrorRate().evaluate(x, y)
        0.5
    """

    better = "min"

    gathered = ("samples", "_edits", "_labels")

    def __init__(self, blank: int = 0, padding: int = -1) -> None:
        self.blank = checked_count("LabelErrorRate", "blank", blank, 0)
        self.padding = padding
        super().__init__()

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        self._edits = self._labels = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch."""
        ops, x, y = self._outputs(x, y)
        if x.ndim not in (2, 3) or y.ndim != 2 or len(y) != len(x):
            raise DataError(
                "LabelErrorRate",
                expected="scores (batch, frames, classes) or labels (batch, labels), and targets"
                " (batch, labels)",
                received=f"shapes {x.shape} and {y.shape}",
                advice="pad the targets to the longest",
            )
        found = best_path(x, self.blank, None) if x.ndim == 3 else self._cut(ops.host(x))
        weights = self._weights(ops, weight, x.shape[:1])
        each = [1.0] * len(x) if weights is None else ops.host(weights).tolist()
        for got, wanted, count in zip(found, self._cut(ops.host(y)), each, strict=True):
            self._edits += count * _edits(got, wanted)
            self._labels += count * len(wanted)
        self.samples += len(x)

    def compute(self) -> float:
        """Return the rate; without any label the number of edits."""
        return self._edits / (self._labels or 1.0)

    def _cut(self, rows: Array) -> list[list[int]]:
        return [[int(k) for k in row if k != self.padding] for row in rows]


def _edits(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the least number of edits from ``a`` to ``b`` (Wagner and Fischer 1974)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            corner, row[j] = row[j], min(corner + (one != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]
