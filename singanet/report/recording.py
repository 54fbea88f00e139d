"""The callbacks that log a run, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from singanet.base.files import path_of
from singanet.report.confusion_log import ConfusionLog
from singanet.report.live_page import LivePage
from singanet.report.memory_log import MemoryLog
from singanet.report.run_files import CONFUSION, HISTORY, LAYERS, MEMORY
from singanet.report.run_notes import RunNotes
from singanet.training.callbacks import Callback, CSVLogger, LayerStatistics


def recorders(
    folder: str | PathLike[str],
    settings: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    every_steps: int = 1,
    live: bool = False,
) -> list[Callback]:
    """Callbacks that write to ``folder`` all that `write_report` shows.

    ``settings`` go into the configuration, ``labels`` name the classes, and norms of gradients
    are taken at every ``every_steps``-th step. ``live`` keeps the page in the folder while the
    training goes on, loading itself anew every few seconds: see `LivePage`.
    """
    folder = path_of(folder, "folder")
    return [
        RunNotes(folder, settings),
        CSVLogger(folder / HISTORY),
        LayerStatistics(folder / LAYERS, every_steps),
        MemoryLog(folder / MEMORY),
        ConfusionLog(folder / CONFUSION, labels),
        *([LivePage(folder)] if live else []),
    ]
