"""Training: `fit`, callbacks and history; each name is imported when first used.

`options`, `feeding`, `batches` and `compiled` (names: `named_outputs`) prepare a `fit`. A `session`
with its `course` and `ranks` runs it, by `steps` and `hooks`. `measures`, `evaluation` and
`display` measure and show it, `callbacks` watch it. `files`, `restore` and `resident` save, resume
and measure memory; `rate_range` tries learning rates.
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

if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
