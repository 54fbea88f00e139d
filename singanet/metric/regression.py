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

    def values(self, ops: Ops, x: Array, y: Array) -> Array:
        """See `MeanMetric`."""
        off = ops.absolute(x - real_targets("MeanAbsoluteError", x, y)).astype("float64")
        return off if off.ndim == 1 else off.mean(axis=tuple(range(1, off.ndim)))


class RootMeanSquaredError(Metric):
    """√ of the mean of (x − y)² over all elements, for ``x`` and ``y`` of one shape (B, ...)."""

    gathered = ("samples", "_elements", "_squares")

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._elements = 0
        self._squares = 0.0

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        ops, x, y = self._outputs(x, y)
        off = (x - real_targets("RootMeanSquaredError", x, y)).astype("float64")
        self._squares += float(ops.square(off).sum())
        self._elements += off.size
        self.samples += len(x)

    def compute(self) -> float:
        """See `Metric`."""
        return math.sqrt(self._squares / max(self._elements, 1))


class R2(Metric):
    """1 − Σ (y − x)² / Σ (y − ȳ)², mean over the elements of a sample, each with its own ȳ.

    ``x`` and ``y`` have one shape (B, ...). An element whose target never changes counts as 1
    where it is met exactly, else as 0.
    """

    gathered = ("samples", "_mean", "_spread", "_error")
    of_none = math.nan

    def reset(self) -> None:
        """Forget every sample."""
        self.samples = 0
        self._mean: Array | None = None
        self._spread: Array | None = None
        self._error: Array | None = None

    def update(self, x: Array, y: Array) -> None:
        """Gather a batch."""
        _, x, y = self._outputs(x, y)
        y = real_targets("R2", x, y).astype("float64")
        if self._mean is not None and self._mean.shape != y.shape[1:]:
            raise ShapeError(
                "R2",
                expected=f"samples of shape {self._mean.shape}, as in the batches before",
                received=f"samples of shape {y.shape[1:]}",
                advice="reset the metric, or use one for each output",
            )
        if not len(y):
            return
        mean = y.mean(axis=0)
        spread, error = ((y - mean) ** 2).sum(axis=0), ((y - x) ** 2).sum(axis=0)
        self.merge({"samples": len(y), "_mean": mean, "_spread": spread, "_error": error})

    def merge(self, state: Mapping[str, Any]) -> None:
        """As in Chan et al. (1979): sums of squares of raw targets would cancel."""
        if not state["samples"]:
            return
        before, self.samples = self.samples, self.samples + state["samples"]
        mean, spread, error = state["_mean"], state["_spread"], state["_error"]
        if before:
            shift, share = mean - self._mean, state["samples"] / self.samples
            spread = spread + self._spread + shift**2 * (before * share)
            error = error + self._error
            mean = self._mean + shift * share
        self._mean, self._spread, self._error = mean, spread, error

    def compute(self) -> float:
        """See `Metric`."""
        if self._spread is None or self._error is None:
            return math.nan
        flat = self._spread <= 0
        share = 1.0 - self._error / (self._spread + flat)
        share = share * ~flat + flat * (self._error <= 0)
        return float(share.mean())
