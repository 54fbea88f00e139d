"""How far label sequences are from those that were to be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.base.arguments import checked_count
from singanet.errors import DataError
from singanet.loss.ctc_decoding import best_path
from singanet.metric.metric import Metric
from singanet.types import Array


class LabelErrorRate(Metric):
    """Edits from decoded to true labels, of all sequences, by the number of true labels.

    Outputs are the scores (B, T, C) that `CTC` takes, decoded by their best path, or labels (B, S')
    already; targets (B, S) and labels end where ``padding`` begins. An edit puts a label in, leaves
    one out or replaces one (Levenshtein 1966). Of words or characters it is what is called word or
    character error rate; it may exceed 1.
    """

    better = "min"

    gathered = ("samples", "_edits", "_labels")

    def __init__(self, blank: int = 0, padding: int = -1) -> None:
        self.blank = checked_count("LabelErrorRate", "blank", blank, 0)
        self.padding = padding
        super().__init__()

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._edits = self._labels = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch."""
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
        """See `Metric`; without any label the number of edits."""
        return self._edits / (self._labels or 1.0)

    def _cut(self, rows: Array) -> list[list[int]]:
        return [[int(k) for k in row if k != self.padding] for row in rows]


def _edits(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The least number of edits that make ``b`` of ``a`` (Wagner and Fischer 1974)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            corner, row[j] = row[j], min(corner + (one != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]
