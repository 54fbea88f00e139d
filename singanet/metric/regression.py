"""Metrics of the difference to real targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from singanet.errors import ShapeError
from singanet.loss.targets import real_targets
from singanet.metric.metric import MeanMetric, Metric
from singanet.ops.interface import Ops
from singanet.types import Array


class MeanAbsoluteError(MeanMetric):
    """|x − y|, mean over all elements, for ``x`` and ``y`` of one shape (B, ...)."""

    better = "min"

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        off: Array = ops.absolute(x - real_targets("MeanAbsoluteError", x, y))
        return off.astype("float64")


class RootMeanSquaredError(MeanMetric):
    """√ of the mean of (x − y)² over all elements, for ``x`` and ``y`` of one shape (B, ...)."""

    better = "min"

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """The squares; see `MeanMetric`."""
        off = (x - real_targets("RootMeanSquaredError", x, y)).astype("float64")
        square: Array = ops.square(off)
        return square

    def of_mean(self, mean: float) -> float:
        """Its root."""
        return math.sqrt(mean)


class R2(Metric):
    """1 − Σ (y − x)² / Σ (y − ȳ)², mean over the elements of a sample, each with its own ȳ.

    ``x`` and ``y`` have one shape (B, ...). An element whose target never changes counts as 1
    where it is met exactly, else as 0.
    """

    better = "max"

    gathered = ("samples", "_count", "_mean", "_spread", "_error")
    of_none = math.nan

    def reset(self) -> None:
        """Forget every sample."""
        self.samples, self._count = 0, 0.0
        self._mean: Array | None = None
        self._spread: Array | None = None
        self._error: Array | None = None

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Gather a batch."""
        ops, x, y = self._outputs(x, y)
        y = real_targets("R2", x, y).astype("float64")
        if self._mean is not None and self._mean.shape != y.shape[1:]:
            raise ShapeError(
                "R2",
                expected=f"samples of shape {self._mean.shape}, as in the batches before",
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
        """As in Chan et al. (1979): sums of squares of raw targets would cancel."""
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
