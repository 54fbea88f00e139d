"""A line an epoch in a CSV file."""

from __future__ import annotations

import csv
from os import PathLike
from pathlib import Path
from typing import TextIO

from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder


class CSVLogger(Callback):
    """Writes ``epoch`` and all measures to ``path``, flushed after every epoch.

    The columns are those of the first epoch. A resumed training keeps the lines before it; any
    other begins a new file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_train_begin(self) -> None:
        """See that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._columns = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Add the line."""
        if self._file is None:
            self._columns = ["epoch", *logs]
            before = self._lines_before(epoch) if self.session.resumed else []
            self._file = self.path.open("w", newline="", encoding="utf-8")
            csv.writer(self._file, lineterminator="\n").writerows([self._columns, *before])
        row = [repr(logs[name]) if name in logs else "" for name in self._columns[1:]]
        csv.writer(self._file, lineterminator="\n").writerow([epoch, *row])
        self._file.flush()

    def on_train_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _lines_before(self, epoch: int) -> list[list[str]]:
        """What an earlier run wrote of the epochs before ``epoch``, in today's columns."""
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        earlier = [row for row in rows if row.get("epoch", "").isdigit()]
        return [
            [row.get(name) or "" for name in self._columns]
            for row in earlier
            if int(row["epoch"]) < epoch
        ]
