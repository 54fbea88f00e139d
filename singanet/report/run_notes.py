"""Notes on a run at its start."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from singanet.base.files import expect_inside, path_of, replacing
from singanet.base.lock import hold, let_go
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet
from singanet.report.run_files import (
    CONFIG,
    CONFUSION,
    FIGURES,
    HISTORY,
    LAYERS,
    MEMORY,
    OUTCOME,
    PICTURE,
    REPORT,
    SUMMARY,
    WRITTEN,
)
from singanet.training.about import about, as_json
from singanet.training.callbacks import Callback, Monitor
from singanet.training.files import check_folder
from singanet.training.history import History

_OF_EPOCHS = (HISTORY, LAYERS, MEMORY, CONFUSION, FIGURES)
"""Files that are written later, and by other callbacks, if these are there."""


class RunNotes(Callback):
    """Writes ``config.json``, ``summary.txt`` and ``net.svg`` to ``folder`` before the first step.

    At the end ``outcome.json``: why the training ended, and which epoch was the best by what
    another callback monitors, else by the loss. The folder is this training's meanwhile: a second
    one is refused, and so are files that are links to elsewhere. Where another run was written to
    the folder before, its files go: a resumed training is the same run.

    The configuration holds ``settings`` as they are given and what the fit knows: optimizer and
    loss, each as its `to_config` has it, epochs, seed, type, device. What is no JSON type is
    written as Python shows it.
    """

    first_rank_only = True

    def __init__(
        self, folder: str | PathLike[str], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = path_of(folder, "folder")
        self.settings = dict(settings or {})
        self._begun = False

    def on_train_begin(self) -> None:
        """Claim the folder and write. Errors: `FileAccessError`."""
        self.claim()
        self._begun = False
        (self.folder / REPORT).unlink(missing_ok=True)
        self.write()

    def on_epoch_begin(self, epoch: int) -> None:
        """Remove what another run has left, once it is known that this one is not resumed."""
        if not (self._begun or self.session.resumed):
            for name in _OF_EPOCHS:
                (self.folder / name).unlink(missing_ok=True)
        self._begun = True

    def claim(self) -> None:
        """Lock the folder, and see that it can be written to, and to nowhere else."""
        check_folder(self.folder)
        hold(self.folder, self.session, self)
        for name in (*WRITTEN, REPORT):
            expect_inside(self.folder, self.folder / name)

    def write(self) -> None:
        """Write what is known at the start."""
        (self.folder / OUTCOME).unlink(missing_ok=True)
        net: Any = self.session.net
        _write(
            self.folder / CONFIG, json.dumps(about(self.session, self.settings), indent=2) + "\n"
        )
        _write(self.folder / SUMMARY, net.summary() + "\n")
        if isinstance(net, FeedForwardNet):  # what is trained like a net need not be a graph
            net.plot(self.folder / PICTURE)

    def on_train_end(self) -> None:
        """Write the outcome, where there was any epoch, and let go of the folder."""
        try:
            if self.session.history.epochs:
                text = json.dumps(as_json(self._outcome()), indent=2) + "\n"
                _write(self.folder / OUTCOME, text)
        finally:
            let_go(self.folder, self)

    def _outcome(self) -> dict[str, Any]:
        session = self.session
        watched = [getattr(callback, "monitor", None) for callback in session.callbacks]
        monitor = next((each for each in watched if isinstance(each, Monitor)), None)
        name, mode = ("auto", "auto") if monitor is None else (monitor.name, monitor.mode)
        error = session.error
        return {
            "epochs": len(session.history.epochs),
            "of": session.epochs,
            "stopped": session.stopped,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:500],
            **best_epoch(session.history, name, mode, session.compiled.metrics),
        }


def best_epoch(
    history: History,
    name: str = "auto",
    mode: str = "auto",
    metrics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The ``monitor``, and the ``best_epoch`` by it, from 0; None if all values are NaN.

    If ``name`` was not measured, the monitor is the validation's loss, the loss, or any measure.
    The epoch is None, too, if neither ``mode`` nor ``metrics`` tells which values are better.
    """
    known = (name, "val_loss", "loss", *history)
    monitor = Monitor("report", next(each for each in known if each in history), mode)
    try:
        monitor.begin(history, metrics)
    except ArgumentError:
        return {"monitor": monitor.name, "best_epoch": None, "best": math.nan}
    best = None
    for epoch, value in zip(history.epochs, history[monitor.name], strict=True):
        best = epoch if monitor.better(value) else best
    return {"monitor": monitor.name, "best_epoch": best, "best": monitor.best}


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
