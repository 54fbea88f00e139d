"""Callbacks of a run of the command line."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from singanet.training.callbacks import Callback
from singanet.training.course import StopTraining
from singanet.training.measures import batch_length
from singanet.types import Array, Gradient


class RunFigures(Callback):
    """Seconds, samples, and the most bytes of gradients at once; resumed with the training."""

    def __init__(self) -> None:
        self.samples = 0
        self.peak = 0
        self._before = 0.0
        self._start: float | None = None
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        """From the beginning of the training, without the time between two parts of it."""
        if self._start is None:
            return self._before
        end = time.perf_counter() if self._end is None else self._end
        return self._before + end - self._start

    def on_train_begin(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_train_end(self) -> None:
        """Stop it."""
        self._end = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Count."""
        self.samples += batch_length(self.session.inputs)

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Measure."""
        self.peak = max(self.peak, sum(grad.nbytes for grad in grads))

    def state_dict(self) -> dict[str, Array]:
        """The figures so far."""
        return {"figures": np.array([self.seconds, self.samples, self.peak], np.float64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        seconds, samples, peak = state["figures"]
        self._before, self.samples, self.peak = float(seconds), int(samples), int(peak)


class FiniteLoss(Callback):
    """Ends the training, and saves nothing of it, where an epoch's loss is not finite."""

    def __init__(self) -> None:
        self.failed: tuple[int, float] | None = None

    def on_train_begin(self) -> None:
        """Say that the command tells of it itself."""
        self.session.warned = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Look."""
        if not math.isfinite(logs["loss"]):
            self.failed = epoch + 1, logs["loss"]
            raise StopTraining(f"loss {logs['loss']}")
