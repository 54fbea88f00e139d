"""Memory in the course of a training."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TextIO

from singanet.base.files import explained, path_of
from singanet.training.callbacks import Callback
from singanet.training.files import check_folder
from singanet.training.resident import peak_bytes, resident_bytes
from singanet.types import Array, Gradient


class MemoryLog(Callback):
    """Writes ``{"seconds", "epoch", "step", "resident", "peak", "gradients"}`` to ``path``.

    A JSON line at the end of the first step, then after a step every ``every_seconds``, and at
    the end of every epoch. Bytes: in memory now and at most so far, null where the system does
    not say; ``gradients`` is the most that was handed out together since the line before, which
    is one layer's. The file is begun anew unless the training is resumed, whose seconds go on
    from the last line's.
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
        """See that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._start = time.perf_counter()
        self._due = 0.0
        self._gradients = 0

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Look at the sizes."""
        self._gradients = max(self._gradients, sum(grad.nbytes for grad in grads))

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write a line where one is due."""
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
            # The system counts them at different moments.
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


def _last_seconds(path: Path) -> float:
    """Where an earlier run stopped its clock; 0 without a log that can be read."""
    try:
        *_, last = path.read_text(encoding="utf-8").splitlines()
        return float(json.loads(last)["seconds"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0
