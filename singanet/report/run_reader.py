"""A run folder read back."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from singanet.base.counts import is_int
from singanet.base.files import explained
from singanet.errors import DataError, FileAccessError
from singanet.report.run_files import (
    CONFIG,
    CONFUSION,
    FIGURES,
    HISTORY,
    LAYERS,
    MEMORY,
    PICTURE,
    SUMMARY,
)
from singanet.training.history import History

_FILES = (CONFIG, CONFUSION, FIGURES, HISTORY, LAYERS, MEMORY, PICTURE, SUMMARY)


@dataclass
class Run:
    """What was found in ``folder``; what was not is empty."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    summary: str = ""
    picture: str = ""
    history: History = field(default_factory=History)
    layers: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)


def read_run(folder: str | PathLike[str]) -> Run:
    """Read the files of a run folder; those that are missing leave their part empty.

    The last line of a log may be cut short, as a run that was killed leaves it. Errors:
    `FileAccessError` for a folder that is missing or has none of the files; `DataError` for a
    file that is not what its name says, with the line.
    """
    folder = Path(folder)
    if not any((folder / name).is_file() for name in _FILES):
        raise FileAccessError(
            f"folder {str(folder)!r}",
            expected=f"a run folder with files such as {HISTORY}",
            received="none of them" if folder.is_dir() else "no such folder",
            advice="train with callbacks=singanet.report.recorders(folder) first",
        )
    run = Run(folder)
    run.config = _object(folder / CONFIG)
    run.figures = _object(folder / FIGURES)
    run.summary, run.picture = _text(folder / SUMMARY), _text(folder / PICTURE)
    run.history = _history(folder / HISTORY)
    run.layers = _lines(folder / LAYERS, ("epoch", "parameters"))
    run.memory = _lines(folder / MEMORY, ("seconds",))
    confusion = _object(folder / CONFUSION)
    if confusion:
        run.labels, run.confusion = _matrix(folder / CONFUSION, confusion)
    return run


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    with explained(path, "read"):
        return path.read_bytes().decode("utf-8", errors="replace")


def _object(path: Path) -> dict[str, Any]:
    text = _text(path)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _not(path, "a JSON object", f"text that is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _not(path, "a JSON object", f"a {type(value).__name__}")
    return value


def _lines(path: Path, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    text = _text(path)
    lines = text.splitlines()
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise _not(path, f"a JSON object in line {number}", "other text") from error
        if not isinstance(value, dict) or any(key not in value for key in keys):
            wanted = f"an object with {', '.join(keys)} in line {number}"
            raise _not(path, wanted, line[:60])
        found.append(value)
    return found


def _history(path: Path) -> History:
    history = History()
    rows = list(csv.reader(_text(path).splitlines()))
    if rows and rows[0][:1] != ["epoch"]:
        raise _not(path, "a header that begins with epoch", ",".join(rows[0])[:60])
    for number, row in enumerate(rows[1:], 2):
        try:
            values = [float(value) if value else math.nan for value in row]
            history.record(int(row[0]), dict(zip(rows[0][1:], values[1:], strict=True)))
        except (ValueError, IndexError) as error:
            if number == len(rows):
                break  # cut short
            raise _not(path, f"{len(rows[0])} numbers in line {number}", str(row)[:60]) from error
    return history


def _matrix(path: Path, value: dict[str, Any]) -> tuple[list[str], list[list[int]]]:
    labels, counts = value.get("labels"), value.get("counts")
    square = (
        isinstance(labels, list)
        and isinstance(counts, list)
        and len(labels) == len(counts)
        and all(isinstance(row, list) and len(row) == len(labels) for row in counts)
        and all(is_int(n, 0) for row in counts for n in row)
    )
    if not square or labels is None or counts is None:
        raise _not(path, "C labels and C rows of C counts", "another form")
    return [str(label) for label in labels], counts


def _not(path: Path, expected: str, received: str) -> DataError:
    return DataError(
        f"file {str(path)!r}",
        expected=expected,
        received=received,
        advice="remove the file to have the report without it",
    )
