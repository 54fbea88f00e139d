"""A line an epoch in a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from os import PathLike
from typing import Any, TextIO

from singanet.base.files import explained, path_of, replacing
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder


class CSVLogger(Callback):
    """Writes ``epoch`` and all measures to ``path``, flushed after every epoch.

    The columns are those of the first epoch. A resumed training writes the epochs before it
    again, from its history; any other begins a new file. The old file stays until the new one
    is whole.
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = path_of(path)
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_train_begin(self) -> None:
        """See that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._columns = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Add the line."""
        if self._file is None:
            self._columns = [*logs]
            self._begin_file(epoch)
        with explained(self.path, "write"):
            if self._file is None:
                self._file = self.path.open("a", newline="", encoding="utf-8")
            _writer(self._file).writerow([epoch, *self._row(logs)])
            self._file.flush()

    def on_train_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _begin_file(self, epoch: int) -> None:
        """Write the header, and of a resumed training the epochs before ``epoch``."""
        history = self.session.history
        with (
            replacing(self.path) as beside,
            beside.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = _writer(file)
            writer.writerow(["epoch", *self._columns])
            for k, earlier in enumerate(history.epochs if self.session.resumed else ()):
                if earlier < epoch:
                    writer.writerow([earlier, *self._row(history.row(k))])

    def _row(self, logs: Mapping[str, float]) -> list[str]:
        return [repr(float(logs[name])) if name in logs else "" for name in self._columns]


def _writer(file: TextIO) -> Any:
    return csv.writer(file, lineterminator="\n")
