"""The training loop and its progress line."""

from __future__ import annotations

from singanet.training.loop import EpochResult, evaluate, fit_epoch

__all__ = ["EpochResult", "evaluate", "fit_epoch"]
