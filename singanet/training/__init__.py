"""Training: `fit` with its callbacks and history, and the plain loop beneath the command line."""

from __future__ import annotations

from singanet.training import callbacks
from singanet.training.callbacks import Callback
from singanet.training.fit import fit
from singanet.training.history import History
from singanet.training.loop import EpochResult, evaluate, fit_epoch
from singanet.training.session import Session, StopTraining
from singanet.training.state import restore, training_state

__all__ = [
    "Callback",
    "EpochResult",
    "History",
    "Session",
    "StopTraining",
    "callbacks",
    "evaluate",
    "fit",
    "fit_epoch",
    "restore",
    "training_state",
]
