"""Routes of convolutions chosen by measuring."""

from __future__ import annotations

from singanet.tuning.tune import RouteTimes, TuningReport, tune_kernels

__all__ = ["RouteTimes", "TuningReport", "tune_kernels"]
