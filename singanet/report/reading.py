"""Reading of a run's files."""

from __future__ import annotations

import csv
import math
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

from singanet.base.arguments import Budget, is_int, read_json
from singanet.base.described import shown
from singanet.base.files import expect_inside, explained, path_of
from singanet.errors import ArgumentError, DataError, FileAccessError
from singanet.training.callbacks import Monitor
from singanet.training.display import History

CONFIG = "config.json"
"""The settings of the run: one JSON object; objects in it are sections."""

MACHINE = "machine.json"
"""When the training started, and on which machine: one JSON object, as `RunNotes` writes."""

SUMMARY = "summary.txt"
"""`FeedForwardNet.summary` of the net."""

PICTURE = "net.svg"
"""`FeedForwardNet.plot` of the net."""

HISTORY = "history.csv"
"""A line per epoch under a header, ``epoch`` first, as `CSVLogger` writes."""

LAYERS = "layers.jsonl"
"""A JSON object per epoch, as `LayerStatistics` writes."""

MEMORY = "memory.jsonl"
"""JSON objects with seconds, epoch, step and bytes, as `MemoryLog` writes."""

CONFUSION = "confusion.json"
"""``{"labels": [C names], "counts": [C rows of C]}``, rows the true classes; by `ConfusionLog`."""

OUTCOME = "outcome.json"
"""The end of the training: one JSON object, as `RunNotes` writes."""

FIGURES = "figures.json"
"""The results: one JSON object, such as the test accuracy."""

SAMPLES = "samples.json"
"""Texts of a language model ``before`` and ``after`` its tuning, with the ``prompt``."""

REPORT = "report.html"
"""The page that `write_report` makes from these files."""

COMPARISON = "comparison.html"
"""The page that `write_comparison` makes from several such folders, next to them."""

WRITTEN = (CONFIG, MACHINE, SUMMARY, PICTURE, HISTORY, LAYERS, MEMORY, CONFUSION, OUTCOME, FIGURES)
"""All files except the report."""


LONGEST = 32 << 20
"""The most bytes of a file; a thousand epochs of ResNet-50's norms take as many."""
MOST_MEASURES, MOST_NORMS, MOST_CELLS = 500, 1_000_000, 200_000
NORMS = ("gradient_norm", "gradient_norm_max", "weight_norm")


@dataclass
class Run:
    """The contents of a run folder, as `read_run` returns it; missing parts are empty.

    Args:
        folder: Path of the folder.
        config: The settings of the fit and of the user, by name.
        machine: The start of the training and the machine, by name.
        figures: Further figures of the run, by name.
        outcome: The reason of the end and the best epoch, by name.
        samples: Texts that a language model has written, by name.
        summary: The text of `FeedForwardNet.summary`.
        picture: The SVG text of `FeedForwardNet.plot`.
        history: The `History` of the measures.
        layers: The epochs of `LayerStatistics`.
        memory: The lines of `MemoryLog`.
        labels: The names of the classes.
        confusion: The rows of the confusion matrix, true classes as rows.
        machine: When the training started, and on which machine, by name.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    summary: str = ""
    picture: str = ""
    history: History = field(default_factory=History)
    layers: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)

    def __repr__(self) -> str:
        return shown("Run", {"folder": str(self.folder), "epochs": len(self.history.epochs)})

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name or str(self.folder)


def read_run(folder: str | PathLike[str]) -> Run:
    """Read the files of a run folder; parts of missing files are empty.

    The last line of a log may be incomplete, as after a kill. Errors: `FileAccessError` if the
    folder is missing or has none of the files, or if a link points outside; `DataError` for a file
    with other contents, with the line.

    Args:
        folder: Path of the folder.
    """
    folder = path_of(folder, "folder")
    if not is_run(folder):
        raise _no_run(folder)
    run = read_results(folder)
    run.samples = _object(folder / SAMPLES)
    run.summary, run.picture = _text(folder / SUMMARY), _text(folder / PICTURE)
    run.layers = _lines(folder / LAYERS, ("epoch", "parameters"), _norms)
    names = {name for line in run.layers for name in line["parameters"]}
    if len(names) * len(run.layers) > MOST_NORMS:
        raise _not(folder / LAYERS, f"at most {MOST_NORMS} norms", "more")
    run.memory = _lines(folder / MEMORY, ("seconds",), _bytes)
    confusion = _object(folder / CONFUSION)
    if confusion:
        run.labels, run.confusion = _matrix(folder / CONFUSION, confusion)
    return run


def read_results(folder: Path) -> Run:
    """Read the settings and results of a run folder alone. Errors: as `read_run`."""
    run = Run(folder)
    run.config, run.machine = _object(folder / CONFIG), _object(folder / MACHINE)
    run.figures, run.outcome = _object(folder / FIGURES), _outcome(folder / OUTCOME)
    run.history = _history(folder / HISTORY)
    return run


def is_run(folder: Path, names: Iterable[str] = WRITTEN) -> bool:
    """Return whether ``folder`` has any of the files ``names``."""
    return any((folder / name).is_file() for name in names)


def runs_in(folder: Path) -> list[Path]:
    """Return ``folder`` if it is a run folder, or else all run folders in it, at any depth.

    Links and hidden folders are not followed. Errors: `FileAccessError` if there are none.
    """
    if is_run(folder):
        return [folder]
    found = []
    for root, inner, _ in os.walk(folder):
        # A published model has a file of the same name.
        if is_run(Path(root), {*WRITTEN} - {CONFIG}):
            found.append(Path(root))
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    if not found:
        raise _no_run(folder)
    return found


def _no_run(folder: Path) -> FileAccessError:
    return FileAccessError(
        f"folder {str(folder)!r}",
        expected=f"a run folder with files such as {HISTORY}",
        received="none of them" if folder.is_dir() else "no such folder",
        advice=f"train with singanet train MODEL --out {shlex.quote(str(folder))}, or in Python"
        f" with callbacks=singanet.report.recorders({str(folder)!r})",
    )


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    expect_inside(path.parent, path)
    with explained(path, "read"):
        size = path.stat().st_size
        if size > LONGEST:
            raise _not(path, f"at most {LONGEST} bytes", f"{size}")
        return path.read_bytes().decode("utf-8", errors="replace")


def _object(path: Path) -> dict[str, Any]:
    text = _text(path).encode()
    if not text:
        return {}
    value = read_json(text, Budget(len(text), partial(_not, path)))
    if not isinstance(value, dict):
        raise _not(path, "a JSON object", f"a {type(value).__name__}")
    return value


def _lines(
    path: Path, keys: tuple[str, ...], checked: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    text, found = _text(path), list[dict[str, Any]]()

    def refused(expected: str, received: str) -> DataError:
        return _not(path, f"{expected} in line {len(found) + 1}", received)

    budget = Budget(len(text), refused)
    for line in StringIO(text):
        try:
            value = read_json(line.encode(), budget)
            if not isinstance(value, dict) or any(key not in value for key in keys):
                raise refused(f"an object with {', '.join(keys)}", line[:60])
            found.append(checked(value))
        except TypeError as error:
            raise refused(str(error), line[:60]) from None
        except DataError:
            if line.endswith("\n"):
                raise
            break  # the last line is incomplete
    return found


def _norms(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line of an epoch, reduced to counts and numbers."""
    parameters = line["parameters"]
    if not isinstance(parameters, dict) or not all(
        isinstance(f, dict) for f in parameters.values()
    ):
        raise TypeError("an object of figures for every parameter")
    return {
        "epoch": _count(line["epoch"]),
        "parameters": {
            name: {key: _number(figures.get(key)) for key in NORMS}
            for name, figures in parameters.items()
        },
    }


def _bytes(line: dict[str, Any]) -> dict[str, Any]:
    seconds = _number(line["seconds"])
    if seconds is None:
        raise TypeError("seconds as a number")
    kinds = ("resident", "peak", "gradients")
    counts = {key: _number(line.get(key)) for key in (*kinds, "epoch", "step")}
    return {"seconds": seconds, **counts}


def _number(value: Any) -> float | None:
    """Return ``value``, a number that charts can draw, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise TypeError("numbers, or null")
    return value


def _count(value: Any) -> int:
    if not is_int(value, 0) or value >= 1 << 53:
        raise TypeError("an epoch counted from 0")
    return int(value)


def _history(path: Path) -> History:
    history, text, rows = History(), _text(path), list[list[str]]()
    budget = Budget(len(text), partial(_not, path), MOST_CELLS)
    try:
        for row in csv.reader(StringIO(text)):
            budget.spend(100 + 60 * len(row), 1 + len(row))
            rows.append(row)
    except csv.Error as error:
        raise _not(path, "lines of CSV", str(error)) from error
    if rows and rows[0][:1] != ["epoch"]:
        raise _not(path, "a header that starts with epoch", ",".join(rows[0])[:60])
    if rows and len(rows[0]) > MOST_MEASURES:
        raise _not(path, f"at most {MOST_MEASURES} columns", f"{len(rows[0])}")
    for number, row in enumerate(rows[1:], 2):
        try:
            cells = zip(rows[0][1:], row[1:], strict=True)
            values = {name: float(value) for name, value in cells if value}
            history.record(_count(int(row[0])), values)
        except (TypeError, ValueError, IndexError) as error:
            if number == len(rows):
                break  # the last line is incomplete
            raise _not(path, f"{len(rows[0])} numbers in line {number}", str(row)[:60]) from error
    return history


def _outcome(path: Path) -> dict[str, Any]:
    value = _object(path)
    texts = ("stopped", "error", "monitor", "better")
    good = all(isinstance(value.get(k), (str, NoneType)) for k in texts)
    numbers = all(isinstance(value.get(k), (int, NoneType)) for k in ("epochs", "of", "best_epoch"))
    try:
        _number(value.get("seconds"))
    except TypeError:
        numbers = False
    if not good or not numbers:
        expected = "an object with epochs, of, stopped, error, monitor, best_epoch, seconds"
        raise _not(path, expected, "others")
    return value


def _matrix(path: Path, value: dict[str, Any]) -> tuple[list[str], list[list[int]]]:
    labels, counts = value.get("labels"), value.get("counts")
    square = (
        isinstance(labels, list)
        and isinstance(counts, list)
        and len(labels) == len(counts)
        and all(isinstance(row, list) and len(row) == len(labels) for row in counts)
        and all(is_int(n, 0) and n < 1 << 53 for row in counts for n in row)
    )
    if not square or labels is None or counts is None:
        raise _not(path, "C labels and C rows of C counts", "another form")
    return [str(label)[:200] for label in labels], counts


def _not(path: Path, expected: str, received: str) -> DataError:
    return DataError(
        f"file {str(path)!r}",
        expected=expected,
        received=received,
        advice="remove the file to make the report without it",
    )


def best_epoch(
    history: History,
    name: str = "auto",
    mode: str = "auto",
    metrics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the ``monitor`` and its ``best_epoch``, from 0; None if all values are NaN.

    If ``name`` was not measured, the monitor is the validation loss, the loss, or any measure.
    ``better`` is "min" or "max"; the epoch is also None if neither ``mode`` nor ``metrics`` defines
    it.
    """
    unknown = {"monitor": None, "better": None, "best_epoch": None, "best": math.nan}
    if not history:
        return unknown
    known = (name, "val_loss", "loss", *history)
    monitor = Monitor("report", next(each for each in known if each in history), mode)
    try:
        monitor.begin(history, metrics)
    except ArgumentError:
        return {**unknown, "monitor": monitor.name}
    best = None
    for epoch, value in zip(history.epochs, history[monitor.name], strict=True):
        best = epoch if monitor.better(value) else best
    better = {"better": monitor.direction, "best_epoch": best, "best": monitor.best}
    return {"monitor": monitor.name, **better}
