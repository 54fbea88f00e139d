"""A JSON object a line, for programs that follow a training."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from os import PathLike
from typing import Any, TextIO

from singanet.base.arguments import checked_count
from singanet.base.files import explained, path_of
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder


class JSONLinesLogger(Callback):
    """Appends ``{"event": "epoch", "epoch", "step", "seconds", measures...}`` to ``path``.

    With ``every_steps`` a line ``{"event": "step", ...}`` as well after so many steps. The file
    is begun anew unless the training is resumed. What is not finite is written as null, since
    JSON has no such numbers.
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str], every_steps: int | None = None) -> None:
        self.path = path_of(path)
        self.every_steps = (
            None
            if every_steps is None
            else checked_count("JSONLinesLogger", "every_steps", every_steps, 1)
        )
        self._file: TextIO | None = None
        self._start = 0.0

    def on_train_begin(self) -> None:
        """See that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._start = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write a line where one is due."""
        if self.every_steps is not None and self.session.step % self.every_steps == 0:
            self._write("step", self.session.epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write a line."""
        self._write("epoch", epoch, logs)

    def on_train_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, event: str, epoch: int, logs: Mapping[str, float]) -> None:
        line: dict[str, Any] = {
            "event": event,
            "epoch": epoch,
            "step": self.session.step,
            "seconds": round(time.perf_counter() - self._start, 6),
        }
        line |= {k: value if math.isfinite(value) else None for k, value in logs.items()}
        with explained(self.path, "write"):
            if self._file is None:
                self._file = self.path.open("a" if self.session.resumed else "w", encoding="utf-8")
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
