"""Callbacks that write logs."""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TextIO, TypedDict

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.files import explained, path_of, replacing
from singanet.base.heap import private_bytes
from singanet.base.kinds import bytes_text
from singanet.device import Device, cpu
from singanet.layers import Layer
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder
from singanet.training.resident import held_bytes, peak_bytes, resident_bytes
from singanet.types import Array, Gradient, RowSparse


class CSVLogger(Callback):
    """Writes a line with the epoch and all measures after every epoch.

    The columns are the first epoch's. A resumed training writes the earlier epochs again, from its
    history; any other starts a new file. The old file stays until the new one is complete.

    Args:
        path: Path of the file, in an existing folder or a new one.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> log = singanet.training.callbacks.CSVLogger("log.csv")
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=3, callbacks=[log], verbose=False)
        >>> [line.split(",")[0] for line in log.path.read_text().splitlines()]
        ['epoch', '0', '1', '2']
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = path_of(path)
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_train_begin(self) -> None:
        """Check that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._columns = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the line."""
        if self._file is None:
            self._columns = [*logs]
            self._begin_file(epoch)
        with explained(self.path, "write"):
            if self._file is None:
                self._file = self.path.open("a", newline="", encoding="utf-8")
            _writer(self._file).writerow([epoch, *self._row(logs)])
            self._file.flush()

    def on_train_end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _begin_file(self, epoch: int) -> None:
        """Write the header, and in a resumed training the epochs before ``epoch``."""
        history = self.session.history
        with (
            replacing(self.path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = _writer(file)
            writer.writerow(["epoch", *self._columns])
            for k, earlier in enumerate(history.epochs if self.session.resumed else ()):
                if earlier < epoch:
                    writer.writerow([earlier, *self._row(history.row(k))])

    def _row(self, logs: Mapping[str, float]) -> list[str]:
        return [repr(float(logs[name])) if name in logs else "" for name in self._columns]


def _writer(file: TextIO) -> Any:
    return csv.writer(file, lineterminator="\n")


class JSONLinesLogger(Callback):
    """Appends ``{"event": "epoch", "epoch", "step", "seconds", measures...}`` to a file.

    Unless the training is resumed, it starts a new file. Numbers that are not finite are written as
    null, since JSON has no such numbers.

    Args:
        path: Path of the file.
        every_steps: Positive int, the steps between two lines ``{"event": "step", ...}`` with the
            step's loss; None for none.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> log = singanet.training.callbacks.JSONLinesLogger("log.jsonl")
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=2, callbacks=[log], verbose=False)
        >>> log.path.read_text().count('"event": "epoch"')
        2
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
        """Check that the file can be written. Errors: `FileAccessError`."""
        check_folder(self.path.parent)
        self._start = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write a line if one is due."""
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


class EpochStatistics(TypedDict):
    """An epoch of `LayerStatistics`: three figures by name for each parameter."""

    epoch: int
    parameters: dict[str, dict[str, float]]


class LayerStatistics(Callback):
    """Records the norms of every parameter's gradients and values in each epoch.

    ``epochs`` is a list of ``{"epoch", "parameters": {name: {"gradient_norm", "gradient_norm_max",
    "weight_norm"}}}``, with the mean and the largest norm of the gradients. Gradients are read
    before any clipping, and the weights' norm before the last of the steps that are read. A resumed
    training continues the earlier epochs, in ``epochs`` and in the file.

    Args:
        path: Path of a file to write the epochs to as JSON lines; None for none.
        every_steps: Positive int; every ``every_steps``-th step is read.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> norms = singanet.training.callbacks.LayerStatistics()
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=2, callbacks=[norms], verbose=False)
        >>> sorted(norms.epochs[1]["parameters"]["out/weight"])
        ['gradient_norm', 'gradient_norm_max', 'weight_norm']
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str] | None = None, every_steps: int = 1) -> None:
        self.path = None if path is None else path_of(path)
        self.every_steps = checked_count("LayerStatistics", "every_steps", every_steps, 1)
        self.epochs: list[EpochStatistics] = []
        self._rows: dict[str, list[list[float]]] = {}
        self._written = False

    def on_train_begin(self) -> None:
        """Reset the statistics. Errors: `FileAccessError`."""
        self.epochs, self._rows, self._written = [], {}, False
        if self.path is not None:
            check_folder(self.path.parent)

    def on_epoch_begin(self, epoch: int) -> None:
        """Start the file anew, with the epochs of a resumed training."""
        if self.path is not None and not self._written:
            with replacing(self.path) as temporary:
                temporary.write_text("".join(map(_line, self.epochs)), encoding="utf-8")
            self._written = True

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Accumulate the norms."""
        if self.session.step % self.every_steps:
            return
        for name, value, grad in zip(names, values, grads, strict=True):
            seen = self._row(name)
            norm = _norm(grad.rows if isinstance(grad, RowSparse) else grad)
            seen[0] += 1
            seen[1] += norm
            seen[2] = norm if math.isnan(norm) else max(seen[2], norm)
            seen[3] = _norm(value)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Store the epoch's figures."""
        self._close(epoch)
        if self.path is not None:
            with explained(self.path, "write"), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(self.epochs[-1]))

    def state_dict(self) -> dict[str, Array]:
        """Return the epochs so far, and each parameter's sums, including the current epoch's."""
        done = [each["epoch"] for each in self.epochs]
        rows = {f"rows/{name}": np.array(self._all(name)) for name in self._rows}
        return {"epochs": np.array(done, np.int64), **rows}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state from `state_dict`."""
        self.epochs = []
        rows = {key[5:]: array for key, array in state.items() if key.startswith("rows/")}
        self._rows = {name: [] for name in rows}
        for k, epoch in enumerate([*state["epochs"].tolist(), None]):
            for name, array in rows.items():
                self._rows[name].append(array[k].tolist())
            if epoch is not None:
                self._close(epoch)

    def _row(self, name: str) -> list[float]:
        """Return count, sum, maximum and the weights' norm of the current epoch."""
        return self._all(name)[-1]

    def _all(self, name: str) -> list[list[float]]:
        """Return a row for every epoch including the current one; zeros without any norm."""
        rows = self._rows.setdefault(name, [])
        rows += [[0.0] * 4 for _ in range(len(self.epochs) + 1 - len(rows))]
        return rows

    def _close(self, epoch: int) -> None:
        figures = {
            name: {"gradient_norm": total / count, "gradient_norm_max": most, "weight_norm": w}
            for name, (count, total, most, w) in ((name, self._row(name)) for name in self._rows)
            if count
        }
        self.epochs.append({"epoch": epoch, "parameters": figures})


def _norm(array: Array) -> float:
    flat = widened(array).reshape(-1)
    return float(ops_for(array).xp.linalg.norm(flat)) if flat.size else 0.0


def _line(epoch: object) -> str:
    return json.dumps(_without_nan(epoch)) + "\n"


def _without_nan(value: object) -> object:
    """Return ``value`` with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class LayerTiming(Callback):
    """Measures the seconds of each layer's forward and backward.

    They are summed over the whole fit, validation included. ``forward`` and ``backward`` map layer
    names to seconds, `table` formats them. It costs two clock reads a call. On a GPU kernels run
    asynchronously, so only their launch is timed.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> timing = singanet.training.callbacks.LayerTiming()
        >>> history = net.fit(np.eye(2), np.eye(2), epochs=2, callbacks=[timing], verbose=False)
        >>> list(timing.forward)[1:], timing.backward["out"] > 0
        (['out'], True)
    """

    def __init__(self) -> None:
        self.forward: dict[str, float] = {}
        self.backward: dict[str, float] = {}
        self._timed: list[Layer] = []

    def on_train_begin(self) -> None:
        """Wrap the layers' methods in timers."""
        self._timed = list(self.session.net.layers)
        self.forward = {layer.name: 0.0 for layer in self._timed}
        self.backward = dict(self.forward)
        for layer in self._timed:
            vars(layer)["forward"] = _clocked(layer.forward, self.forward, layer.name)
            vars(layer)["backward"] = _clocked(layer.backward, self.backward, layer.name)

    def on_train_end(self) -> None:
        """Remove the timers."""
        for layer in self._timed:
            vars(layer).pop("forward", None)
            vars(layer).pop("backward", None)
        self._timed = []

    def table(self) -> str:
        """Return a line a layer: name, milliseconds forward and backward, share of the total."""
        total = sum(self.forward.values()) + sum(self.backward.values()) or 1.0
        width = max(map(len, [*self.forward, "layer"]))
        lines = [f"{'layer':<{width}}  {'forward ms':>10}  {'backward ms':>11}  share"]
        for name, seconds in self.forward.items():
            back = self.backward[name]
            lines.append(
                f"{name:<{width}}  {1e3 * seconds:>10.2f}  {1e3 * back:>11.2f}  "
                f"{100 * (seconds + back) / total:>4.0f}%"
            )
        return "\n".join(lines)


def _clocked(call: Callable[..., Any], seconds: dict[str, float], name: str) -> Callable[..., Any]:
    clock = time.perf_counter

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        try:
            return call(*args, **kwargs)
        finally:
            seconds[name] += clock() - start

    return timed


class MemoryCheck(Callback):
    """Measures the peak memory of a fit, and prints at its end the error of a prediction.

    ``measured`` is the peak so far, in bytes beyond ``before``; None if the system does not report
    it. It is read after each step, and on the CPU at the end from the system's record of peaks, if
    this fit has set it; on another device it is the bytes of arrays there.

    Args:
        predicted: Int, the predicted peak in bytes beyond ``before``.
        budget: Int, the bytes beyond ``before`` above which the report says so; None for none.
        before: Int, the bytes of the process before the fit; None reads them when it begins.
        stream: File to print to; None for standard error.
        device: The net's device; None for the CPU.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> import io
        >>> memory = singanet.training.callbacks.MemoryCheck(10**6, stream=io.StringIO())
        >>> history = net.fit(np.eye(2), np.eye(2), callbacks=[memory], verbose=False)
        >>> memory.predicted
        1000000
    """

    _runs_last = True
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
        """The bytes by which the prediction exceeds the measurement."""
        return None if self.measured is None else self.predicted - self.measured

    def on_train_begin(self) -> None:
        """Start measuring."""
        self._highest, self.measured = peak_bytes() or 0, None
        if self.before is None:
            self.before = self._used_bytes()

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Read the memory."""
        self._observe(self._used_bytes())

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Read the memory."""
        self._observe(self._used_bytes())

    def on_train_end(self) -> None:
        """Write the report."""
        highest, now, own = peak_bytes() or 0, resident_bytes(), private_bytes()
        on_host = self._device.ops.xp is np
        if on_host and highest > self._highest and now is not None and own is not None:
            self._observe(highest - (now - own))
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

    def _used_bytes(self) -> int | None:
        return held_bytes(self._device)

    def _observe(self, held: int | None) -> None:
        if held is not None and self.before is not None:
            self.measured = max(self.measured or 0, held - self.before)


_MB = 10**6


class MemoryLine(Callback):
    """Writes a line an epoch: resident memory, its peak, and the most bytes of gradients.

    ``gradient_bytes`` is the largest sum of gradients that one layer yields together.

    Args:
        stream: File to write to; None for standard error.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> import io
        >>> line = singanet.training.callbacks.MemoryLine(io.StringIO())
        >>> history = net.fit(np.eye(2), np.eye(2), callbacks=[line], verbose=False)
        >>> line.gradient_bytes
        24
    """

    first_rank_only = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self.gradient_bytes = 0

    def on_train_begin(self) -> None:
        """Start measuring."""
        self.gradient_bytes = 0

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Read the sizes."""
        self.gradient_bytes = max(self.gradient_bytes, sum(grad.nbytes for grad in grads))

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the line."""
        resident, peak = resident_bytes(), peak_bytes()
        known = "" if resident is None else f"resident {resident / _MB:.1f} MB  "
        known += "" if peak is None else f"peak {peak / _MB:.1f} MB  "
        stream = self._stream or sys.stderr
        gradients = f"gradients at most {self.gradient_bytes / _MB:.2f} MB"
        stream.write(f"epoch {epoch + 1}  {known}{gradients}\n")
        stream.flush()
