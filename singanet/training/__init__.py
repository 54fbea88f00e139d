"""Training: fits with their callbacks and history, each name imported when it is first asked for.

`options`, `feeding`, `batches` and `compiled` (names: `named_outputs`) are what a `fit` begins
with; a `session` with its `course` and `ranks` goes through it, by `steps` and `hooks`. `measures`,
`evaluation` and `display` tell how it goes, `callbacks` watch. `files`, `restore` and `resident`
are about what stays, `rate_range` tries rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.training import callbacks
    from singanet.training.callbacks import Callback
    from singanet.training.course import StopTraining
    from singanet.training.display import History
    from singanet.training.rate_range import RateRange
    from singanet.training.session import Session

__all__ = ["Callback", "History", "RateRange", "Session", "StopTraining", "callbacks"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
