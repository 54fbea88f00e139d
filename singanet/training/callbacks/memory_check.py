"""How far the memory of a training was from what was predicted."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

import numpy as np

from singanet.base.heap import private_bytes
from singanet.base.sizes import bytes_text
from singanet.device import Device, cpu
from singanet.training.callbacks.callback import Callback
from singanet.training.resident import held_bytes, peak_bytes, resident_bytes


class MemoryCheck(Callback):
    """Measures the resident peak of a fit, and tells at its end how far the prediction was off.

    ``predicted`` is the most that the process should take beyond ``before``, its bytes when the fit
    begins; ``budget`` is the most that it may take beyond them. ``measured`` is the peak so far,
    None if the system does not say. It is read after each step, and on the CPU once more at the end
    from the system's own record of peaks, if this fit has set it; on another ``device`` it is what
    arrays there take. ``stream`` None is standard error.
    """

    runs_last = True
    first_rank_only = True

    def __init__(
        self,
        predicted: int,
        budget: int | None = None,
        before: int | None = None,
        stream: TextIO | None = None,
        device: Device | None = None,
    ) -> None:
        self._device = device or cpu()
        self.predicted = predicted
        self.budget = budget
        self.before = before
        self.measured: int | None = None
        self._stream = stream
        self._highest = 0

    @property
    def off(self) -> int | None:
        """Bytes by which the prediction is above what was measured."""
        return None if self.measured is None else self.predicted - self.measured

    def on_train_begin(self) -> None:
        """Begin to measure."""
        self._highest, self.measured = peak_bytes() or 0, None
        if self.before is None:
            self.before = self._held()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Look."""
        self._see(self._held())

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Look."""
        self._see(self._held())

    def on_train_end(self) -> None:
        """Say it."""
        highest, now, own = peak_bytes() or 0, resident_bytes(), private_bytes()
        on_host = self._device.ops.xp is np
        if on_host and highest > self._highest and now is not None and own is not None:
            self._see(highest - (now - own))
        if self.measured is None or self.off is None:
            return
        share = self.off / max(self.measured, 1)
        text = (
            f"memory: {bytes_text(self.measured)} at most, predicted {bytes_text(self.predicted)}"
        )
        text += f" ({'+' if self.off >= 0 else '-'}{bytes_text(abs(self.off))}, {share:+.1%})"
        if self.budget is not None and self.measured > self.budget:
            text += f"; above the budget of {bytes_text(self.budget)}"
        stream = self._stream or sys.stderr
        stream.write(text + "\n")
        stream.flush()

    def _held(self) -> int | None:
        return held_bytes(self._device)

    def _see(self, held: int | None) -> None:
        if held is not None and self.before is not None:
            self.measured = max(self.measured or 0, held - self.before)
