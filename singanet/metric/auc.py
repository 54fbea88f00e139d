"""Area under the ROC curve."""

from __future__ import annotations

import math

import numpy as np

from singanet.errors import DataError, ShapeError
from singanet.metric.metric import Metric
from singanet.types import Array


class AUC(Metric):
    """The chance that a random positive scores above a random negative, ties counting half.

    ``x`` is scores (B,), (B, 1), or (B, 2) for two classes, of which the second is the positive;
    ``y`` is 0 and 1, (B,) or (B, 1). Exact: all scores are kept, 9 bytes a sample, of two columns
    17, since probabilities near 0 and 1 differ by less than their difference holds. Not a number
    until both classes have come.
    """

    gathered = ("samples", "_scores", "_rests", "_positive")
    of_none = math.nan

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._scores: list[Array] = []
        self._rests: list[Array] = []
        self._positive: list[Array] = []

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        _, x, y = self._outputs(x, y)
        batch = len(x)
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
        x, y = (array if isinstance(array, np.ndarray) else array.get() for array in (x, y))
        if x.shape == (batch, 2):
            scores, rest = _difference(x[:, 1].astype(np.float64), x[:, 0].astype(np.float64))
        else:
            scores, rest = x.reshape(-1).astype(np.float64), np.zeros(0)
        self._scores.append(scores)
        self._rests.append(rest)
        self._positive.append(y.reshape(-1).astype(np.bool_))
        self.samples += batch

    def compute(self) -> float:
        """See `Metric`."""
        scores, positive = np.concatenate(self._scores), np.concatenate(self._positive)
        yes = int(positive.sum())
        no = len(positive) - yes
        if not yes or not no or np.isnan(scores).any():
            return math.nan
        rests = np.concatenate(self._rests)
        rests = rests if len(rests) == len(scores) else np.zeros_like(scores)
        order = np.lexsort((rests, scores))
        # The Mann-Whitney statistic: each score's rank, the mean one where several are equal.
        scores, rests = scores[order], rests[order]
        new = (scores[1:] != scores[:-1]) | (rests[1:] != rests[:-1])
        which = np.concatenate([[0], np.cumsum(new)])
        counts = np.bincount(which)
        ranks = np.empty(len(scores))
        ranks[order] = (np.cumsum(counts) - (counts - 1) / 2.0)[which]
        return float((ranks[positive].sum() - yes * (yes + 1) / 2.0) / (yes * no))


def _difference(a: Array, b: Array) -> tuple[Array, Array]:
    """a − b rounded, and what the rounding took off: the exact order of all differences (Knuth)."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = a - b
        part = total - a
        rest = (a - (total - part)) - (b + part)
    return total, np.where(np.isfinite(rest), rest, 0.0)
