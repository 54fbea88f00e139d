"""A progress bar that becomes plain lines where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any, TextIO, TypeVar

from singanet.training.loop import EpochResult

Self = TypeVar("Self", bound="Progress")


class Progress:
    """One epoch's line: loss, metric and samples per second; use it in a with statement."""

    def __init__(self, title: str, batches: int, stream: TextIO | None = None) -> None:
        self.title = title
        self.batches = batches
        self.stream = stream or sys.stderr
        self.start = time.perf_counter()
        self.last: EpochResult | None = None
        self._bar: Any = None

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

    def update(self, result: EpochResult) -> None:
        """Show the means so far."""
        self.last = result
        if self._bar is not None:
            self._bar.set_postfix_str(self._text(result), refresh=False)
            self._bar.update()

    def _text(self, result: EpochResult) -> str:
        rate = result.samples / max(time.perf_counter() - self.start, 1e-9)
        metric = "" if result.metric is None else f"  metric {result.metric:.4f}"
        return f"loss {result.loss:.4f}{metric}  {rate:,.0f} samples/s"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self.last is not None and kind is None:
            self.stream.write(f"{self.title}  {self._text(self.last)}\n")
            self.stream.flush()
