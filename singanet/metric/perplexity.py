"""How many choices a model wavers between."""

from __future__ import annotations

import math

from singanet.errors import DataError
from singanet.loss.targets import class_labels
from singanet.metric.metric import Metric
from singanet.ops import Ops, ops_for
from singanet.types import Array

_AT_A_TIME = 1 << 20
"""Scores whose probabilities are made at a time, of a row at least."""


class Perplexity(Metric):
    """exp of the mean cross-entropy in nats over all positions of scores ``x`` (B, ..., C).

    ``y`` is integer labels (B, ...) or (B, ..., 1); those equal to ``ignore_index`` do not count.
    """

    better = "min"

    by_rows = ("ignore_index",)
    gathered = ("samples", "positions", "_nats", "_count")
    of_none = 1.0

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = ignore_index
        super().__init__()

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self.positions = 0
        self._nats = self._count = 0.0

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch."""
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
        """The cross-entropy of each row; the probabilities are not all there at a time."""
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
