"""Progress and history of a fit."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Protocol, TextIO, TypeVar

from singanet.base.elsewhere import NoEntryError, missing_attribute
from singanet.base.kinds import bytes_text
from singanet.base.notebooks import Shown, html_table, short_note
from singanet.base.progress import ProgressBar, width_of
from singanet.engine.net import Net
from singanet.errors import brief, did_you_mean, one_of
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.library import GAIN, INSTALL, find_library, has_wheel
from singanet.ops.selection import VARIABLE

if TYPE_CHECKING:
    from singanet.base.charts import LineChart

SHORT = 0.5
"""Seconds of an epoch that needs no bar: to open one takes as long as several steps."""

Self = TypeVar("Self", bound="EpochLine")
Batch = TypeVar("Batch")


class EpochFigures(Protocol):
    """The figures of the current epoch that the line shows."""

    samples: int

    def loss(self) -> float:
        """Return the mean loss over the samples."""


class EpochLine:
    """Shows one epoch's loss, metrics and samples per second; use it in a with statement.

    ``batches`` None means an unknown number. ``counted`` is the unit of the speed and the number of
    units in a sample; ``before`` is the number of samples of the epoch that were trained before the
    line began.

    On a terminal or in a notebook a `ProgressBar` shows the batches: from the start, or after an
    epoch of less than `SHORT` seconds only if this one is longer. At the end a line of figures
    replaces it, wrapped to the terminal's width.
    """

    _short: ClassVar[bool] = False
    """Whether the last epoch was short."""

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
        self.stream = stream or sys.stderr
        self._trained: float | None = None
        self._figures: dict[str, str] = {}
        delay = SHORT if EpochLine._short else 0.0
        self.bar = ProgressBar(title, batches, stream=self.stream, delay=delay)
        self._start = self.bar.start
        # At every batch of a small net, an attribute of the bar would cost more than the bar.
        self.due = self.bar.due

    def __enter__(self: Self) -> Self:
        if self.due():
            self.bar.show(0)
        return self

    def show(self, measures: EpochFigures, batch: int) -> None:
        """Show the mean loss of the epoch and its speed after ``batch`` batches."""
        loss, speed = _figure("loss", measures.loss()), self._speed(measures.samples)
        short = f"{speed:.0f}/s" if speed < 1e4 else f"{speed / 1e3:.0f}k/s"
        said = f"{speed:,.0f} {self.counted[0]}/s"
        self.bar.show(batch, (loss, said), (loss, short), (loss,))

    def trained(self) -> None:
        """Stop the clock of the speed when training ends and validation begins."""
        self._trained = time.perf_counter()

    def validating(self, batches: Iterable[Batch], count: int | None) -> Iterator[Batch]:
        """Yield the validation ``batches``, with a bar of ``count`` batches if it is known."""
        self.bar.restart(f"{self.title}, validation", count)
        if self.bar.is_shown:
            self.bar.show(0)
        for batch in batches:
            yield batch
            # Free the batch before drawing the next.
            del batch
            self.bar.add()

    def finish(self, logs: Mapping[str, float], samples: int) -> None:
        """Set the figures that the line shows at the end: ``logs`` by name."""
        self._figures = {name: _figure(name, value) for name, value in logs.items()}
        self._figures[""] = f"{self._speed(samples):,.0f} {self.counted[0]}/s"

    def _speed(self, samples: int) -> float:
        end = time.perf_counter() if self._trained is None else self._trained
        return (samples - self._before) * self.counted[1] / max(end - self._start, 1e-9)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.close()
        EpochLine._short = time.perf_counter() - self._start < SHORT
        if self._figures and kind is None:
            self.stream.write(filled(self.title, self._figures, width_of(self.stream)) + "\n")
            self.stream.flush()


def _figure(name: str, value: float) -> str:
    # The traffic of a rank in a step.
    if name.startswith("bytes_") and math.isfinite(value):
        return f"{name} {bytes_text(round(value))}"
    plain = value == 0.0 or 1e-3 <= abs(value) < 1e5 or not math.isfinite(value)
    return f"{name} {value:.4f}" if plain else f"{name} {value:.3e}"


def filled(title: str, figures: Mapping[str, str], width: int | None) -> str:
    """Join ``figures``, by name, to a line; to lines of at most ``width`` if one is too short.

    A measure of validation then follows the one of training: "loss 0.1 val 0.2".
    """
    line = "  ".join([title, *figures.values()])
    if width is None or len(line) <= width:
        return line
    lines = [title]
    for part in _pairs(figures):
        longer = f"{lines[-1]}  {' '.join(part)}"
        if len(longer) <= width:
            lines[-1] = longer
        elif len(f"  {' '.join(part)}") <= width:
            lines.append(f"  {' '.join(part)}")
        else:
            lines += [f"  {each}" for each in part]
    return "\n".join(lines)


def _pairs(figures: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield each figure, with that of the validation if there are both."""
    for name, text in figures.items():
        beside = f"val_{name}"
        if beside in figures:
            yield [text, figures[beside].removeprefix("val_").replace(name, "val", 1)]
        elif not (name.startswith("val_") and name.removeprefix("val_") in figures):
            yield [text]


_MOST_SHOWN = 10
"""Epochs of each end of a long history, as a table."""


class History(dict[str, list[float]]):
    """Lists of measures by name, with one value an epoch: ``history["val_loss"]``.

    ``epochs`` are the numbers of the epochs. A measure that an epoch lacks is NaN there.
    ``stopped`` is the reason for an early end, None if there was none.

    Examples:
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
        self._absent: set[tuple[str, int]] = set()
        """Names and positions in ``epochs`` of the values that were not measured."""

    if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
        __getattr__ = missing_attribute

    def __missing__(self, name: str) -> list[float]:
        """Raise a `KeyError` with the nearest name."""
        near = next((each for each in self if each.startswith(str(name))), None)
        raise NoEntryError(
            "history",
            expected=f"one of {one_of(self) or 'no measures yet'}",
            received=brief(name),
            advice=f"did you mean {near!r}?"
            if near is not None
            else did_you_mean(str(name), self, "pass metrics to net.compile"),
        )

    def record(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Append ``logs``, the values of ``epoch`` by name."""
        position = len(self.epochs)
        for name in logs:
            if name not in self:
                self[name] = [math.nan] * position
                self._absent |= {(name, earlier) for earlier in range(position)}
        self.epochs.append(epoch)
        self._absent |= {(name, position) for name in self if name not in logs}
        for name, values in self.items():
            values.append(float(logs.get(name, math.nan)))

    def _amend(self, logs: Mapping[str, float]) -> None:
        """Set the values of the last epoch."""
        last = len(self.epochs) - 1
        for name, value in logs.items():
            if name not in self:
                self[name] = [math.nan] * (last + 1)
                self._absent |= {(name, earlier) for earlier in range(last)}
            self[name][-1] = float(value)
            self._absent.discard((name, last))

    def row(self, index: int) -> dict[str, float]:
        """Return the values of one epoch by name; ``index`` is its position in ``epochs``."""
        return {name: values[index] for name, values in self.items()}

    def plot(self, path: str | PathLike[str] | None = None) -> Shown:
        """Draw training and validation of each quantity in a chart, and return the SVG text.

        Epochs are counted from 1, as in the progress line. Errors: `ArgumentError` for another
        suffix; `FileAccessError`; `BackendError` without the extra ``report``.

        Args:
            path: Path of a .svg or .png file to write as well; None for none.
        """
        from singanet.base.charts import line_charts, write_chart

        where = "history.plot"
        return write_chart(lambda: line_charts(where, curves(self)), where, path)

    def __str__(self) -> str:
        return dict.__repr__(self)

    def __repr__(self) -> str:
        last = [f"{name} {values[-1]:.4g}" for name, values in self.items()]
        epochs = f"{len(self.epochs):,} epoch{'s' * (len(self.epochs) != 1)}"
        return short_note(f"History: {'; '.join([epochs, *last])}")

    def _repr_html_(self) -> str:
        """Return the picture for notebooks, or the numbers without the extra ``report``."""
        from singanet.base.charts import in_notebook

        return in_notebook("curves", self.plot) or self._numbers()

    def _numbers(self) -> str:
        rows = [
            (f"{epoch + 1}", *(f"{value:.6g}" for value in self.row(k).values()))
            for k, epoch in enumerate(self.epochs)
        ]
        if len(rows) > 2 * _MOST_SHOWN:
            rows = [*rows[:_MOST_SHOWN], ("…",), *rows[-_MOST_SHOWN:]]
        return html_table(("epoch", *self), rows)


def curves(history: History) -> list[LineChart]:
    """Return a chart for each quantity, with training and validation."""
    from singanet.base.charts import LineChart

    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in history.items():
        points = [
            (epoch + 1.0, value)
            for k, (epoch, value) in enumerate(zip(history.epochs, values, strict=True))
            if (name, k) not in history._absent
        ]
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
    from singanet.layers.convolution import Convolution
    from singanet.layers.counting import multiply_adds

    found = 0
    for node in net.nodes():
        layer = node.layer
        if isinstance(layer, Convolution) and isinstance(layer.in_shapes, tuple):
            found += multiply_adds(layer, [layer.in_shapes], node.output_shapes()) or 0
    return found
