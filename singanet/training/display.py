"""Progress and history of a fit."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from singanet.base.charts import LineChart, in_notebook, line_charts, write_chart
from singanet.base.elsewhere import missing_attribute
from singanet.base.kinds import bytes_text
from singanet.engine.net import Net
from singanet.layers.convolution import Convolution
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.library import GAIN, INSTALL, find_library, has_wheel
from singanet.ops.selection import VARIABLE
from singanet.summary import multiply_adds

INTERVAL = 0.1
USUAL_WIDTH = 80

Self = TypeVar("Self", bound="EpochLine")
Batch = TypeVar("Batch")


class EpochFigures(Protocol):
    """The figures of the epoch so far that the line shows."""

    samples: int

    def loss(self) -> float:
        """The mean over them."""


class EpochLine:
    """One epoch's loss, metrics and samples per second; use it in a with statement.

    ``batches`` is None where nobody knows how many come: they are counted then, without a bar.
    ``counted`` is what the speed is told in, and how many of these a sample has;
    ``before`` are samples of the epoch that were done before the line began.

    On a terminal a bar is brought up to date ten times a second, not at every batch: steps of a
    small net take less time than drawing it. In the end it gives way to the figures, in as many
    lines as the terminal's width asks for.
    """

    def __init__(
        self,
        title: str,
        batches: int | None,
        stream: TextIO | None = None,
        counted: tuple[str, int] = ("samples", 1),
        before: int = 0,
    ) -> None:
        self.title = title
        self._before = before
        self.counted = counted
        self.batches = batches
        self.stream = stream or sys.stderr
        self.start = time.perf_counter()
        self._trained: float | None = None
        self._bar: Any = None
        self._figures: list[str] = []
        self._width: int | None = None
        self._due = 0.0

    def __enter__(self: Self) -> Self:
        if self.stream.isatty():
            from tqdm import tqdm

            # Some terminals, those of containers among them, say that they have no columns.
            width = os.get_terminal_size(self.stream.fileno()).columns
            self._width = width or USUAL_WIDTH
            self._bar = tqdm(
                total=self.batches,
                desc=self.title,
                file=self.stream,
                bar_format=_form(self.batches),
                ncols=None if width else USUAL_WIDTH,
                dynamic_ncols=bool(width),
                leave=False,
            )
        return self

    def due(self) -> bool:
        """Whether it is time to `show` again; never without a terminal."""
        return self._bar is not None and time.perf_counter() >= self._due

    def show(self, measures: EpochFigures, batch: int) -> None:
        """Show the mean loss so far, ``batch`` batches into the epoch."""
        self._show(batch, "  ".join(self._said({"loss": measures.loss()}, measures.samples)))

    def trained(self) -> None:
        """Stop the clock of the speed: what comes now is no training."""
        self._trained = time.perf_counter()

    def validating(self, batches: Iterable[Batch], count: int | None) -> Iterator[Batch]:
        """``batches`` of the validation, ``count`` if that is known, with a bar of their own."""
        if self._bar is not None:
            self._bar.set_description_str(f"{self.title}, validation", refresh=False)
            self.batches = self._bar.total = count
            self._bar.bar_format = _form(count)
            self._bar.reset()
        for done, batch in enumerate(batches, 1):
            yield batch
            # Let go before the next one is drawn.
            del batch
            if self.due():
                self._show(done)

    def finish(self, logs: Mapping[str, float], samples: int) -> None:
        """Say, when the block ends, what the epoch came to, ``logs`` by name."""
        self._figures = self._said(logs, samples)

    def _show(self, done: int, figures: str = "") -> None:
        self._due = time.perf_counter() + INTERVAL
        if self.batches is not None and done > self.batches:
            # More than the epoch before had.
            self.batches = self._bar.total = None
        self._bar.bar_format = _form(self.batches, figures)
        self._bar.n = done
        self._bar.refresh()

    def _said(self, logs: Mapping[str, float], samples: int) -> list[str]:
        what, each = self.counted
        end = time.perf_counter() if self._trained is None else self._trained
        rate = (samples - self._before) * each / max(end - self.start, 1e-9)
        return [*starmap(_told, logs.items()), f"{rate:,.0f} {what}/s"]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._figures and kind is None:
            self.stream.write(filled([self.title, *self._figures], self._width) + "\n")
            self.stream.flush()


def _told(name: str, value: float) -> str:
    # What ranks send and receive in a step.
    if name.startswith("bytes_") and math.isfinite(value):
        return f"{name} {bytes_text(round(value))}"
    return f"{name} {value:.4f}"


def _form(batches: int | None, figures: str = "") -> str:
    """The form of a bar, or of a count alone, as tqdm reads it."""
    said = figures.replace("{", "{{").replace("}", "}}")
    said = f" {said} " if said else " "
    if batches is None:
        return "{desc}, batch {n_fmt}" + said + "{elapsed}"
    return "{desc} {n_fmt}/{total_fmt} |{bar}|" + said + "{elapsed}<{remaining}"


def filled(parts: Sequence[str], width: int | None) -> str:
    """``parts`` in lines of at most ``width`` where they are that short; in one line for None."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)


class History(dict[str, list[float]]):
    """Lists by name, ``history["val_loss"]``, one value an epoch; ``epochs`` are their numbers.

    A name that an epoch did not measure is NaN there. ``stopped`` says why training ended early,
    None if it did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.stopped: str | None = None

    if not TYPE_CHECKING:  # else type checkers accept any name
        __getattr__ = missing_attribute

    def record(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Append the values of ``epoch``."""
        for name in logs:
            if name not in self:
                self[name] = [math.nan] * len(self.epochs)
        self.epochs.append(epoch)
        for name, values in self.items():
            values.append(float(logs.get(name, math.nan)))

    def _amend(self, logs: Mapping[str, float]) -> None:
        """Set the values of the last epoch."""
        for name, value in logs.items():
            if name not in self:
                self[name] = [math.nan] * len(self.epochs)
            self[name][-1] = float(value)

    def row(self, index: int) -> dict[str, float]:
        """The values of one epoch, by its position in ``epochs``."""
        return {name: values[index] for name, values in self.items()}

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """An SVG picture with a chart a quantity, training and validation in one.

        Returns its text, and writes it to ``path``, a .svg file, where one is given. Epochs are
        counted from 1, as progress is shown. Errors: `ArgumentError` for another suffix;
        `FileAccessError`; `BackendError` without the extra ``report``.
        """
        where = "history.plot"
        return write_chart(lambda: line_charts(where, curves(self)), where, path)

    def _repr_html_(self) -> str | None:
        """The picture, for notebooks; without the extra ``report`` they show the text."""
        return in_notebook("curves", self.plot)


def curves(history: History) -> list[LineChart]:
    """A chart a quantity, training and validation in one."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in history.items():
        points = [(epoch + 1.0, v) for epoch, v in zip(history.epochs, values, strict=True)]
        lines.setdefault(name.removeprefix("val_"), {})[name] = points
    return [LineChart(title, "epoch", each) for title, each in lines.items()]


_MUCH = 1_000_000
"""Multiply-adds of convolutions for a sample above which it is worth a line."""

_advised = False


def tell_once(net: Net) -> None:
    """Say on the standard error what would make ``net`` train faster, if it has not been said."""
    global _advised
    text = "" if _advised else advice(net)
    if text:
        _advised = True
        sys.stderr.write(f"{text}\n")


def advice(net: Net) -> str:
    """What to install for nets such as ``net``; empty where nothing is to be gained.

    That is where other kernels serve than NumPy's, or these were asked for by name, no wheel fits
    the machine, or ``net`` is not on the CPU, or has few convolutions.
    """
    if net.device.ops is not numpy_ops or os.environ.get(VARIABLE):
        return ""
    if not has_wheel() or find_library() is not None or _convolutions(net) < _MUCH:
        return ""
    return f"NumPy's kernels train this net. With oneDNN's, {GAIN}; {INSTALL}"


def _convolutions(net: Net) -> int:
    """The multiply-adds of convolutions that are known, for a sample."""
    found = 0
    for node in net.nodes():
        layer = node.layer
        if isinstance(layer, Convolution) and isinstance(layer.in_shapes, tuple):
            found += multiply_adds(layer, [layer.in_shapes], node.output_shapes()) or 0
    return found
