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
    """The figures of the current epoch that the line shows."""

    samples: int

    def loss(self) -> float:
        """Return the mean loss over the samples."""


class EpochLine:
    """Shows one epoch's loss, metrics and samples per second; use it in a with statement.

    ``batches`` None means an unknown number: the line counts them, without a bar. ``counted`` is
    the unit of the speed and the number of units in a sample; ``before`` is the number of samples
    of the epoch that were trained before the line began.

    On a terminal the bar is redrawn ten times a second, not at every batch: drawing takes longer
    than a step of a small net. At the end the figures replace it, wrapped to the terminal's width.
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

            # Some terminals, for example in containers, report 0 columns.
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
        """Return whether it is time to `show` again; always False without a terminal."""
        return self._bar is not None and time.perf_counter() >= self._due

    def show(self, measures: EpochFigures, batch: int) -> None:
        """Show the mean loss of the epoch after ``batch`` batches."""
        self._show(batch, "  ".join(self._formatted({"loss": measures.loss()}, measures.samples)))

    def trained(self) -> None:
        """Stop the clock of the speed when training ends and validation begins."""
        self._trained = time.perf_counter()

    def validating(self, batches: Iterable[Batch], count: int | None) -> Iterator[Batch]:
        """Yield the validation ``batches``, with a bar of ``count`` batches if it is known."""
        if self._bar is not None:
            self._bar.set_description_str(f"{self.title}, validation", refresh=False)
            self.batches = self._bar.total = count
            self._bar.bar_format = _form(count)
            self._bar.reset()
        for done, batch in enumerate(batches, 1):
            yield batch
            # Free the batch before drawing the next.
            del batch
            if self.due():
                self._show(done)

    def finish(self, logs: Mapping[str, float], samples: int) -> None:
        """Set the figures that the line shows at the end: ``logs`` by name."""
        self._figures = self._formatted(logs, samples)

    def _show(self, done: int, figures: str = "") -> None:
        self._due = time.perf_counter() + INTERVAL
        if self.batches is not None and done > self.batches:
            # More batches than in the previous epoch.
            self.batches = self._bar.total = None
        self._bar.bar_format = _form(self.batches, figures)
        self._bar.n = done
        self._bar.refresh()

    def _formatted(self, logs: Mapping[str, float], samples: int) -> list[str]:
        what, each = self.counted
        end = time.perf_counter() if self._trained is None else self._trained
        rate = (samples - self._before) * each / max(end - self.start, 1e-9)
        return [*starmap(_figure, logs.items()), f"{rate:,.0f} {what}/s"]

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


def _figure(name: str, value: float) -> str:
    # The traffic of a rank in a step.
    if name.startswith("bytes_") and math.isfinite(value):
        return f"{name} {bytes_text(round(value))}"
    return f"{name} {value:.4f}"


def _form(batches: int | None, figures: str = "") -> str:
    """Return tqdm's format of a bar, or of a count if ``batches`` is unknown."""
    said = figures.replace("{", "{{").replace("}", "}}")
    said = f" {said} " if said else " "
    if batches is None:
        return "{desc}, batch {n_fmt}" + said + "{elapsed}"
    return "{desc} {n_fmt}/{total_fmt} |{bar}|" + said + "{elapsed}<{remaining}"


def filled(parts: Sequence[str], width: int | None) -> str:
    """Join ``parts`` to lines of at most ``width`` if each fits; to one line for None."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)


class History(dict[str, list[float]]):
    """Lists of measures by name, with one value an epoch: ``history["val_loss"]``.

    ``epochs`` are the numbers of the epochs. A measure that an epoch lacks is NaN there.
    ``stopped`` is the reason for an early end, None if there was none.

    Example:
        >>> history = singanet.training.History()
        >>> history.record(0, {"loss": 0.5})
        >>> history.record(1, {"loss": 0.25})
        >>> history["loss"], history.row(1)
        ([0.5, 0.25], {'loss': 0.25})
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.stopped: str | None = None

    if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
        __getattr__ = missing_attribute

    def record(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Append ``logs``, the values of ``epoch`` by name."""
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
        """Return the values of one epoch by name; ``index`` is its position in ``epochs``."""
        return {name: values[index] for name, values in self.items()}

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """Draw training and validation of each quantity in a chart, and return the SVG text.

        Epochs are counted from 1, as in the progress line. Errors: `ArgumentError` for another
        suffix; `FileAccessError`; `BackendError` without the extra ``report``.

        Args:
            path: Path of a .svg file to write as well; None for none.
        """
        where = "history.plot"
        return write_chart(lambda: line_charts(where, curves(self)), where, path)

    def _repr_html_(self) -> str | None:
        """Return the picture for notebooks, or None without the extra ``report``."""
        return in_notebook("curves", self.plot)


def curves(history: History) -> list[LineChart]:
    """Return a chart for each quantity, with training and validation."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in history.items():
        points = [(epoch + 1.0, v) for epoch, v in zip(history.epochs, values, strict=True)]
        lines.setdefault(name.removeprefix("val_"), {})[name] = points
    return [LineChart(title, "epoch", each) for title, each in lines.items()]


_MUCH = 1_000_000
"""The multiply-adds of convolutions a sample above which `advice` suggests oneDNN."""

_advised = False


def tell_once(net: Net) -> None:
    """Write `advice` for ``net`` to standard error, once a process."""
    global _advised
    text = "" if _advised else advice(net)
    if text:
        _advised = True
        sys.stderr.write(f"{text}\n")


def advice(net: Net) -> str:
    """Return the advice to install oneDNN for nets such as ``net``, or "" if it would not help.

    It would not help if other kernels than NumPy's are used, if NumPy's were selected by name, if
    no wheel fits the machine, or if ``net`` is on a device or has few convolutions.
    """
    if net.device.ops is not numpy_ops or os.environ.get(VARIABLE):
        return ""
    if not has_wheel() or find_library() is not None or _convolutions(net) < _MUCH:
        return ""
    return f"NumPy's kernels train this net. With oneDNN's, {GAIN}; {INSTALL}"


def _convolutions(net: Net) -> int:
    """Return the known multiply-adds of convolutions for a sample."""
    found = 0
    for node in net.nodes():
        layer = node.layer
        if isinstance(layer, Convolution) and isinstance(layer.in_shapes, tuple):
            found += multiply_adds(layer, [layer.in_shapes], node.output_shapes()) or 0
    return found
