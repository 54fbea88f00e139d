"""Training: `fit` with its callbacks and history.

`options`, `feeding`, `batches` and `compiled` (names: `named_outputs`) are what a fit begins with;
a `session` with its `course` and `ranks` goes through it, by `steps` and `hooks`. `measures`,
`evaluation` and `display` tell how it goes, `callbacks` watch. `files`, `restore` and `resident`
are about what stays, `rate_range` tries rates.
"""

from __future__ import annotations

from singanet.training import callbacks
from singanet.training.callbacks import Callback
from singanet.training.course import StopTraining
from singanet.training.display import History
from singanet.training.fit import fit
from singanet.training.options import FitOptions
from singanet.training.rate_range import RateRange
from singanet.training.restore import restore
from singanet.training.session import Session, training_state

__all__ = [
    "Callback",
    "FitOptions",
    "History",
    "RateRange",
    "Session",
    "StopTraining",
    "callbacks",
    "fit",
    "restore",
    "training_state",
]
