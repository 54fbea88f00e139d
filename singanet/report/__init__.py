"""Run folders: the files of a training, and the pages made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.report.comparison import write_comparison
from singanet.report.pages import LivePage, follow, plot_confusion, write_report
from singanet.report.reading import Run, read_run
from singanet.report.recording import ConfusionLog, MemoryLog, RunNotes, recorders

__all__ = [
    "ConfusionLog",
    "LivePage",
    "MemoryLog",
    "Run",
    "RunNotes",
    "follow",
    "plot_confusion",
    "read_run",
    "recorders",
    "write_comparison",
    "write_report",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
