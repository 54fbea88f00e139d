"""The line that an epoch of `fit` writes: a bar, or plain text where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO, TypeVar

from singanet.training.measures import Measures

INTERVAL = 0.1

Self = TypeVar("Self", bound="EpochLine")


class EpochLine:
    """One epoch's loss, metrics and samples per second; use it in a with statement.

    On a terminal it is brought up to date ten times a second, not at every batch: steps of a
    small net take less time than drawing the line.
    """

    def __init__(self, title: str, batches: int, stream: TextIO | None = None) -> None:
        self.title = title
        self.batches = batches
        self.stream = stream or sys.stderr
        self.start = time.perf_counter()
        self._bar: Any = None
        self._text = ""
        self._shown = 0
        self._due = 0.0

    def __enter__(self: Self) -> Self:
        if self.stream.isatty():
            from tqdm import tqdm

            # Some terminals, those of containers among them, say that they have no columns.
            width = os.get_terminal_size(self.stream.fileno()).columns
            self._bar = tqdm(
                total=self.batches,
                desc=self.title,
                file=self.stream,
                bar_format="{desc} {n_fmt}/{total_fmt} |{bar}|{postfix} {elapsed}<{remaining}",
                ncols=None if width else 80,
                dynamic_ncols=bool(width),
            )
        return self

    def due(self) -> bool:
        """Whether it is time to `show` again; never without a terminal."""
        return self._bar is not None and time.perf_counter() >= self._due

    def show(self, measures: Measures, batch: int) -> None:
        """Show the mean loss so far, ``batch`` batches into the epoch."""
        self._due = time.perf_counter() + INTERVAL
        self._set({"loss": measures.loss()}, measures.samples, batch)

    def finish(self, logs: Mapping[str, float], samples: int, batch: int) -> None:
        """Show what the epoch came to, ``logs`` by name."""
        self._set(logs, samples, batch)

    def _set(self, logs: Mapping[str, float], samples: int, batch: int) -> None:
        rate = samples / max(time.perf_counter() - self.start, 1e-9)
        parts = [f"{name} {value:.4f}" for name, value in logs.items()]
        self._text = "  ".join([*parts, f"{rate:,.0f} samples/s"])
        if self._bar is not None:
            self._bar.set_postfix_str(self._text, refresh=False)
            self._bar.update(batch - self._shown)
        self._shown = batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._text and kind is None:
            self.stream.write(f"{self.title}  {self._text}\n")
            self.stream.flush()
