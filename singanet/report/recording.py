"""Callbacks that write the files of a run for its report."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from singanet.base.files import expect_inside, explained, hold, let_go, path_of, replacing
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import ConfusionMatrix
from singanet.net import FeedForwardNet
from singanet.ops.costs import cpu_info
from singanet.report.pages import LivePage, expect_labels
from singanet.report.reading import (
    CONFIG,
    CONFUSION,
    FIGURES,
    HISTORY,
    LAYERS,
    MACHINE,
    MEMORY,
    OUTCOME,
    PICTURE,
    REPORT,
    SUMMARY,
    WRITTEN,
    best_epoch,
)
from singanet.training.batches import output_names
from singanet.training.callbacks import Callback, CSVLogger, LayerStatistics, Monitor
from singanet.training.callbacks.trackers import about, as_json
from singanet.training.evaluation import on_device
from singanet.training.files import check_folder
from singanet.training.measures import Measures, batch_length
from singanet.training.resident import peak_bytes, resident_bytes
from singanet.types import Array, Gradient

_OF_EPOCHS = (HISTORY, LAYERS, MEMORY, CONFUSION, FIGURES)
"""Files that other callbacks write later, if they exist."""


class RunNotes(Callback):
    """A callback that writes the configuration, the machine and the net before training.

    The files are ``config.json``, ``machine.json``, ``summary.txt`` and ``net.svg``. At the end it
    writes ``outcome.json``: the reason of the end, the duration, and the best epoch by the monitor
    of another callback, or by the loss. Meanwhile ``folder`` belongs to this training: a second one
    is refused, and so are files that link elsewhere. Files of an earlier run in the folder are
    removed, unless the training is resumed.

    Args:
        folder: Path of the run folder, which is made if it is missing.
        settings: Dict of settings that the configuration has besides the arguments of the fit:
            optimizer and loss by their `to_config`, epochs, seed, type, device. Values without a
            JSON type are written by `str`. None for none.
    """

    first_rank_only = True

    def __init__(
        self, folder: str | PathLike[str], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = path_of(folder, "folder")
        self.settings = dict(settings or {})
        self._has_started = False
        self._begun: float | None = None
        self._before = 0.0

    def on_train_begin(self) -> None:
        """Lock the folder and write the files. Errors: `FileAccessError`."""
        self._has_started, self._begun = False, None
        self.claim()
        self.write()

    def on_epoch_begin(self, epoch: int) -> None:
        """Remove the files of another run if this one is not resumed."""
        if not (self._has_started or self.session.resumed):
            for name in _OF_EPOCHS:
                (self.folder / name).unlink(missing_ok=True)
        self._has_started = True

    def claim(self) -> None:
        """Lock the folder, and check that its files can be written inside it."""
        check_folder(self.folder)
        hold(self.folder, self.session, self)
        for name in (*WRITTEN, REPORT):
            expect_inside(self.folder, self.folder / name)

    def write(self) -> None:
        """Write the files that are known at the start; remove the old outcome and page."""
        for name in (OUTCOME, REPORT):
            (self.folder / name).unlink(missing_ok=True)
        self._begun, self._before = time.perf_counter(), _last_seconds(self.folder / MEMORY)
        net: Any = self.session.net
        _write(self.folder / MACHINE, json.dumps(_machine(), indent=2))
        _write(self.folder / CONFIG, json.dumps(about(self.session, self.settings), indent=2))
        _write(self.folder / SUMMARY, net.summary(width=0))
        if isinstance(net, FeedForwardNet):  # other trainable objects may have no graph
            net.plot(self.folder / PICTURE)

    def on_train_end(self) -> None:
        """Write the outcome, unless the training was refused, and unlock the folder."""
        try:
            if self._begun is not None:
                outcome = self._outcome(time.perf_counter() - self._begun)
                _write(self.folder / OUTCOME, json.dumps(as_json(outcome), indent=2))
        finally:
            let_go(self.folder, self)

    def _outcome(self, seconds: float) -> dict[str, Any]:
        session = self.session
        watched = [getattr(callback, "monitor", None) for callback in session.callbacks]
        monitor = next((each for each in watched if isinstance(each, Monitor)), None)
        name, mode = ("auto", "auto") if monitor is None else (monitor.name, monitor.mode)
        error = session.error
        return {
            "seconds": round(seconds + (self._before if session.resumed else 0.0), 3),
            "epochs": len(session.history.epochs),
            "of": session.epochs,
            "stopped": session.stopped,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:500],
            **best_epoch(session.history, name, mode, session.compiled.metrics),
        }


class ConfusionLog(Callback):
    """A callback that writes the confusion matrix of the validation data at the end.

    It takes one pass over the data. Nothing is written without validation data, for a loss other
    than `SoftmaxCrossEntropy`, for several outputs, or after an error.

    Args:
        path: Path of the JSON file.
        labels: The names of the classes; () to number them.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "softmax_cross_entropy")
        >>> data = np.eye(2), np.arange(2)
        >>> log = singanet.report.ConfusionLog("confusion.json", ["no", "yes"])
        >>> history = net.fit(*data, callbacks=[log], validation_data=data, verbose=False)
        >>> "yes" in log.path.read_text()
        True
    """

    _runs_last = True

    def __init__(self, path: str | PathLike[str], labels: Sequence[str] = ()) -> None:
        self.path = path_of(path)
        self.labels = [str(label) for label in labels]

    def on_train_begin(self) -> None:
        """Check that the file can be written and the labels fit.

        Errors: `FileAccessError`; `ArgumentError` for another number of labels than classes.
        """
        if self.session.rank == 0:
            check_folder(self.path.parent)
        classes = self._classes()
        if classes is not None and self.labels:
            expect_labels(f"file {str(self.path)!r}", self.labels, classes)

    def on_train_end(self) -> None:
        """Compute the confusion matrix of the validation data, and write it."""
        session = self.session
        if session.error is not None or session.validation is None or self._classes() is None:
            return
        metric, net = ConfusionMatrix(), session.net
        measures = Measures(net.loss, {"confusion": metric})
        for x, y, _ in session.validation.epoch():
            if batch_length(y):
                measures(net.forward(False, x), on_device(net.device, y))
        session.ranks.merge(measures)
        if session.rank == 0:
            write_confusion(self.path, metric.result(), self.labels)

    def _classes(self) -> int | None:
        """Return the number of classes; None if the net is not a classifier."""
        net = self.session.net
        names = output_names(net)
        if not isinstance(net.loss, SoftmaxCrossEntropy) or len(names) != 1:
            return None
        shape = next(node for node in net.nodes() if node.name == names[0]).output_shapes()[0]
        return shape[-1]


def write_confusion(path: Path, counts: Array, labels: Sequence[str] = ()) -> None:
    """Write ``counts`` (C, C), rows the true classes. Errors: another number of labels."""
    if labels:
        expect_labels(f"file {str(path)!r}", labels, len(counts))
    names = list(labels) or [str(k) for k in range(len(counts))]
    _write(path, json.dumps({"labels": names, "counts": counts.tolist()}))


class MemoryLog(Callback):
    """A callback that writes ``{"seconds", "epoch", "step", "resident", "peak", "gradients"}``.

    The file gets a JSON line after the first step, then after a step every ``every_seconds``, and
    after every epoch. ``resident`` and ``peak`` are the bytes of the process now and at most so
    far, null if the system does not report them. ``gradients`` is the largest size of gradients of
    one layer since the last line. A resumed training appends to the file and continues its seconds;
    any other starts a new file.

    Args:
        path: Path of the file.
        every_seconds: Number from 0 on, the least seconds between two lines of steps.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "softmax_cross_entropy")
        >>> data = np.eye(2), np.arange(2)
        >>> log = singanet.report.MemoryLog("memory.jsonl")
        >>> history = net.fit(*data, callbacks=[log], verbose=False)
        >>> '"epoch": 0' in log.path.read_text()
        True
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str], every_seconds: float = 0.5) -> None:
        self.path = path_of(path)
        self.every_seconds = every_seconds
        self._file: TextIO | None = None
        self._gradients = 0
        self._start = 0.0
        self._due = 0.0

    def on_train_begin(self) -> None:
        """Check that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._start = time.perf_counter()
        self._due = 0.0
        self._gradients = 0

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Record the size of the gradients."""
        self._gradients = max(self._gradients, sum(grad.nbytes for grad in grads))

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write a line if one is due."""
        if time.perf_counter() >= self._due:
            self._write(self.session.epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write a line."""
        self._write(epoch)

    def on_train_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, epoch: int) -> None:
        if self._file is None and self.session.resumed:
            self._start -= _last_seconds(self.path)
        now = time.perf_counter()
        resident, peak = resident_bytes(), peak_bytes()
        if resident is not None and peak is not None:
            # The system updates the two counts at different moments.
            peak = max(peak, resident)
        line = {
            "seconds": round(now - self._start, 3),
            "epoch": epoch,
            "step": self.session.step,
            "resident": resident,
            "peak": peak,
            "gradients": self._gradients,
        }
        with explained(self.path, "write"):
            if self._file is None:
                self._file = self.path.open("a" if self.session.resumed else "w", encoding="utf-8")
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        self._gradients = 0
        self._due = now + self.every_seconds


def _machine() -> dict[str, str]:
    """Return the present time, and a description of the machine and the software."""
    processor = cpu_info().get("model name") or platform.processor() or platform.machine()
    usable = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))
    system = f"{platform.system()} {platform.release()}"
    software = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": f"{platform.node()}, {processor}, {len(usable(0))} cores, {system}, {software}",
    }


def _last_seconds(path: Path) -> float:
    """Return the last time in the log of an earlier run; 0 without a readable log."""
    try:
        *_, last = path.read_text(encoding="utf-8").splitlines()
        return float(json.loads(last)["seconds"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0


def recorders(
    folder: str | PathLike[str],
    settings: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    every_steps: int = 1,
    live: bool = False,
) -> list[Callback]:
    """Return the callbacks that write all files of `write_report` to ``folder``.

    Args:
        folder: Path of the run folder, which is made if it is missing.
        settings: Dict of settings to add to the configuration, as for `RunNotes`.
        labels: The names of the classes; () to number them.
        every_steps: Positive int; the norms of gradients of every ``every_steps``-th step are
            computed.
        live: Whether to add a `LivePage`, which updates the page during the training.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "softmax_cross_entropy")
        >>> data = np.eye(2), np.arange(2)
        >>> callbacks = singanet.report.recorders("run", {"dataset": "eye"})
        >>> history = net.fit(*data, epochs=2, callbacks=callbacks, verbose=False)
        >>> singanet.report.read_run("run").history["loss"] == history["loss"]
        True
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


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")
