"""The line that an epoch of `fit` writes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from singanet.training.loop import EpochResult
from singanet.training.measures import Measures
from singanet.training.progress import Progress

INTERVAL = 0.1


class EpochLine(Progress):
    """A `Progress` that is brought up to date ten times a second, not at every batch.

    Steps of a small net take less time than drawing the line.
    """

    _shown = 0
    _due = 0.0
    _validated = ""

    def due(self) -> bool:
        """Whether it is time to `show` again; never without a terminal."""
        return self._bar is not None and time.perf_counter() >= self._due

    def show(self, measures: Measures, batch: int) -> None:
        """Show the means so far, ``batch`` batches into the epoch."""
        self._due = time.perf_counter() + INTERVAL
        self.last = EpochResult(measures.loss(), None, measures.samples)
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(self.last), refresh=False)
            self._bar.update(batch - self._shown)
        self._shown = batch

    def finish(self, logs: Mapping[str, float], samples: int, batch: int) -> None:
        """Show what the epoch came to, ``logs`` by name."""
        rest = (f"{name} {value:.4f}" for name, value in logs.items() if name != "loss")
        self._validated = "".join(f"  {part}" for part in rest)
        self.last = EpochResult(logs["loss"], None, samples)
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(self.last), refresh=False)
            self._bar.update(batch - self._shown)

    def _text(self, result: EpochResult) -> str:
        return super()._text(result) + self._validated
