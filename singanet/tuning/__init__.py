"""Routes of convolutions chosen by measuring."""

from __future__ import annotations

from singanet.tuning.report import RouteTimes, TuningReport
from singanet.tuning.tune import tune_kernels

__all__ = ["RouteTimes", "TuningReport", "tune_kernels"]
