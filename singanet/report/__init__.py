"""Run folders: what a training leaves there, and pages that show it."""

from __future__ import annotations

from singanet.report.comparison import write_comparison
from singanet.report.confusion_log import ConfusionLog
from singanet.report.confusion_picture import plot_confusion
from singanet.report.live_page import LivePage, follow
from singanet.report.memory_log import MemoryLog
from singanet.report.page import write_report
from singanet.report.recording import recorders
from singanet.report.run_notes import RunNotes
from singanet.report.run_reader import Run, read_run

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
