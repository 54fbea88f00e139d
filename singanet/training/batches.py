"""Batches of arrays and loaders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, checked_count
from singanet.base.columns import by_rows, columns_of, has_frame, is_frame, is_sparse, numbers
from singanet.data.dataset import expect_channels_first
from singanet.data.loaders import ArrayLoader
from singanet.device import Device, cpu
from singanet.engine.feeds import as_array
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    StateMismatchError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.graph.building import ONLY_INPUT
from singanet.layers.geometry import Windowed
from singanet.loss.loss import spread
from singanet.ops import ops_for
from singanet.params.param import Param
from singanet.types import Array, CSRMatrix, RowSparse, Shape

USUAL_BATCH = 32
"""The samples of a batch if the caller gives no number."""


def joined_weight(
    y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None
) -> Array | None:
    """Return ``sample_weight`` times the weight of each sample's class; None if neither is given.

    ``sample_weight`` is (B,), or (B, ...) with a weight for each position. With ``class_weight``
    ``y`` is integer labels (B,) or (B, 1), 0 and 1 of any type, or one-hot rows (B, C). Errors:
    `DataError` if weights are not finite, have the wrong shape, or targets are not one class a
    sample.
    """
    weight = None
    if sample_weight is not None:
        weight = as_array("net.fit, sample_weight", sample_weight)
        if not bool(np.isfinite(weight).all()):
            raise DataError(
                "net.fit, sample_weight",
                expected="weights that are finite numbers",
                received="NaN or infinity",
                advice="weigh samples that do not count by 0",
            )
        for target in y.values() if isinstance(y, Mapping) else (y,):
            shape: Any = getattr(target, "shape", weight.shape)
            if weight.ndim > 1 and tuple(shape[: weight.ndim]) != weight.shape:
                raise DataError(
                    "net.fit, sample_weight",
                    expected="one weight a sample, shape (samples,), or one for each position of"
                    f" targets of shape {tuple(shape)}",
                    received=f"shape {weight.shape}",
                    advice="weigh whole samples",
                )
    if class_weight is None:
        return weight
    labels = _labels(y)
    by_class = np.ones(len(labels), np.float32)
    for key, value in class_weight.items():
        by_class[labels == key] = value
    return by_class if weight is None else spread(by_class, weight) * weight


def _labels(y: Any) -> Array:
    labels = y.get() if hasattr(y, "get") and hasattr(y, "ndim") else y
    ndim = getattr(labels, "ndim", 0)
    rows = ndim == 2 and labels.shape[1] > 1
    # Only row sums tell one-hot classes from multi-label rows and regression targets.
    if rows and bool(((labels == 0) | (labels == 1)).all()) and bool((labels.sum(1) == 1).all()):
        return np.asarray(labels.argmax(axis=1))
    real = ndim and labels.dtype.kind == "f" and bool(((labels == 0) | (labels == 1)).all())
    if rows or ndim not in (1, 2) or not (real or labels.dtype.kind in "iub"):
        raise DataError(
            "net.fit, class_weight",
            expected="one label per sample: integers, 0 and 1, or one-hot rows",
            received=f"targets of shape {labels.shape} and type {labels.dtype}"
            if ndim
            else f"a {type(y).__name__}",
            advice="pass sample_weight instead",
        )
    return np.asarray(labels.reshape(-1))


def input_names(net: Net) -> list[str]:
    """Return the input layers, in the order of the symbols, or else in topological order."""
    return list(net.ports().inputs)


def output_names(net: Net) -> list[str]:
    """Return the output layers, in the order of the symbols, or else in topological order."""
    return list(dict.fromkeys(name for name, _ in net.ports().outputs))


def fed(where: str, net: Net, x: Any, learns: bool = False) -> Any:
    """Return samples ``x`` as arrays for the inputs of ``net``; data frames by their columns.

    If the net ``learns`` from them, it remembers the columns, and a list of layers without an input
    shape is built for theirs. Errors: as for `by_name`, `ColumnAdapter.arrays` and `build`.
    """
    if learns and net.pending:
        shape = by_name(where, x, [ONLY_INPUT], all_of_them=True).shape
        _expect_channels_first(where, net, shape)
        net.build(shape[1:])
    names = input_names(net)
    found = by_name(where, net.taken(where, x), names, all_of_them=True)
    if learns and has_frame(x):
        net.intake.remember(x, names)
    return found


def _expect_channels_first(where: str, net: Net, shape: Shape) -> None:
    """Refuse channels-last images if the first layer of a list slides windows over pixels.

    No input shape names the axes, so rows of pixels would be read as channels.
    """
    first = net.pending[0]
    # Samples of fewer axes are refused by the layer itself.
    if isinstance(first, Windowed) and len(shape) > 1:
        said = f"if there are {shape[1]} channels, pass input_shape={shape[1:]} to"
        expect_channels_first(where, shape, f"{said} {first.name!r}")


def _as_input(where: str, value: Any) -> Any:
    return by_rows(where, value) if is_sparse(value) else as_array(where, value)


def by_name(where: str, data: Any, names: Sequence[str], all_of_them: bool) -> Any:
    """Return ``data`` as an array, or as a dict of arrays by the layer names ``names``.

    With several names a list has the arrays in the order of ``names``, and a data frame the columns
    with those names. The dict of a single layer is unwrapped. With ``all_of_them`` (inputs) every
    name is required and arrays may be sparse. Errors: an unknown name; a missing name with
    ``all_of_them``; a list of another length.
    """
    take = _as_input if all_of_them else as_array
    if is_frame(data):
        if len(names) == 1:
            return take(where, data)
        columns = columns_of(where, data)
        data = {n: numbers(where, n, columns[n])[:, None] for n in names if n in columns}
    if isinstance(data, Mapping):
        _check_keys(where, data, names, all_of_them)
        found = {name: take(f"{where}[{name!r}]", part) for name, part in data.items()}
        return found[names[0]] if list(names) == list(found) and len(names) == 1 else found
    if isinstance(data, (list, tuple)) and data and hasattr(data[0], "shape") and data[0].ndim:
        if len(names) > 1 and len(data) == len(names):
            pairs = zip(names, data, strict=True)
            return {name: take(f"{where}[{name!r}]", part) for name, part in pairs}
        if len(names) == 1 and len(data) == 1:
            return take(where, data[0])
        if len(names) > 1:
            raise ShapeError(
                where,
                expected=f"{len(names)} arrays, for {one_of(names)}",
                received=f"a list of {len(data)}",
                advice="pass a dict by layer name",
            )
    return take(where, data)


def cut(data: Any, part: slice) -> Any:
    """Return the samples ``part`` of an array, or of each array of a dict; None for None."""
    if isinstance(data, Mapping):
        return {name: cut(array, part) for name, array in data.items()}
    if isinstance(data, (list, tuple)):
        return [cut(array, part) for array in data]
    return None if data is None else data[part]


def sample_count(
    parts: Mapping[str, Any], may_be_empty: bool = False, where: str = "net.fit"
) -> int:
    """Return the number of samples in all arrays of ``parts``.

    Errors: `DataError` if the numbers differ, or are 0 unless ``may_be_empty``.
    """
    lengths: dict[str, int] = {}
    for what, data in parts.items():
        if isinstance(data, Mapping):
            lengths |= {f"{what}[{name!r}]": len(part) for name, part in data.items()}
        elif data is not None:
            lengths[what] = len(data)
    if len(set(lengths.values())) > 1:
        raise DataError(
            where,
            expected="the same number of samples in all arrays",
            received=", ".join(f"{name}: {length}" for name, length in lengths.items()),
            advice="pass a target for every sample",
        )
    count = next(iter(lengths.values()))
    if count == 0 and not may_be_empty:
        raise DataError(
            where,
            expected="at least one sample",
            received="0 samples in " + one_of(lengths),
            advice="check how the data were read or selected",
        )
    return count


def _check_keys(
    where: str, given: Mapping[str, Any], names: Sequence[str], all_of_them: bool
) -> None:
    for name in given:
        if name not in names:
            raise UnknownNameError(
                where,
                expected=f"names among {one_of(names)}",
                received=brief(name),
                advice=MESSAGES
                if are_messages(given)
                else did_you_mean(str(name), names, "use the names of the net's layers"),
            )
    missing = [name for name in names if name not in given]
    if missing and (all_of_them or not given):
        raise UnknownNameError(
            where,
            expected=f"arrays for {one_of(names)}",
            received=f"none for {one_of(missing)}",
            advice="add them to the dict",
        )


def saved_parameters(
    params: Iterable[Param], device: Device, saved: Mapping[str, Array], where: str
) -> dict[str, Array]:
    """Copy ``saved`` to ``device``: a float array of the same shape for each of ``params``.

    Errors: `StateMismatchError` for an array that is missing or differs, with its name.
    """
    found = {}
    for param in params:
        array = saved.get(param.name)
        if array is None or array.shape != param.shape or array.dtype.kind != "f":
            raise StateMismatchError(
                f"{where}, {param.name!r}",
                expected=f"floats of shape {param.shape}",
                received="none" if array is None else f"{array.dtype} of shape {array.shape}",
                advice="resume with the net that was saved",
            )
        found[param.name] = device.put(array).copy()
    return found


def is_finite(value: Any) -> bool:
    """Return whether the numbers of an array, or of all arrays of a dict or list, are finite."""
    if isinstance(value, RowSparse):
        return is_finite(value.rows)
    if isinstance(value, CSRMatrix):
        return is_finite(value.values)
    if isinstance(value, Mapping):
        return all(is_finite(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_finite(part) for part in value)
    return bool(ops_for(value).xp.isfinite(value).all())


def copied(array: Array) -> Array:
    """Return a copy on the CPU."""
    return np.array(cpu().put(array))


WeightedBatch: TypeAlias = tuple[Any, Any, Array | None]
"""``(x, y, sample_weight or None)``."""


class Batches(ABC):
    """Epochs of batches. ``steps`` is the number of batches of an epoch, None if unknown.

    With a fixed number of steps an epoch ends after them, and the next continues in the data, which
    start again at their end.
    """

    steps: int | None
    smallest: int | None
    """Samples of the smallest batch, None if unknown."""
    last: int | None = None
    """The batches of the previous epoch, or those that the source has counted; else None."""
    counted: tuple[str, int] = ("samples", 1)
    """The unit of the displayed speed, and the number of units in a sample."""
    _may_be_empty = False
    """Whether this process may have no batch while other processes have one."""
    where = "net.fit"
    """The called method, for error messages."""
    _epoch_steps: int | None = None
    _stream: Iterator[WeightedBatch] | None = None

    @property
    def expected(self) -> int | None:
        """The batches of an epoch: ``steps``, or ``last``; None if unknown."""
        return self.steps or self.last

    def epoch(self, done: int = 0) -> Iterator[WeightedBatch]:
        """Yield the batches of an epoch after the first ``done``.

        Errors: `DataError` if the data end before the epoch does.
        """
        if self._epoch_steps is None:
            if self.steps is not None and 0 < self.steps <= done:
                return
            count = done
            for item in self.one_pass():
                count += 1
                yield item
                # Free the batch before drawing the next, or memory would contain two.
                del item
            if count == 0 and not self._may_be_empty:
                raise ended(self.where, "at least one batch", "none")
            self.last = count
            return
        for k in range(done, self._epoch_steps):
            batch = self._next()
            if batch is None:
                raise ended(self.where, f"{self._epoch_steps} batches an epoch", f"{k}")
            yield batch
            del batch

    def _next(self) -> WeightedBatch | None:
        """Return the next batch across passes, None if two new passes are empty.

        The first pass may be empty: a position can be saved after the last batch.
        """
        for _ in range(3):
            if self._stream is None:
                self._stream = self.one_pass()
            for batch in self._stream:
                return batch
            self._stream = None
        return None

    @abstractmethod
    def one_pass(self) -> Iterator[WeightedBatch]:
        """Yield the batches to the end of the data."""

    @abstractmethod
    def state_dict(self) -> dict[str, int]:
        """Return the position, as integers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position."""


class ArrayBatches(Batches):
    """Batches of arrays in memory, in the order of `ArrayLoader`."""

    def __init__(
        self,
        x: Any,
        y: Any,
        weight: Array | None,
        batch_size: int,
        shuffle: bool,
        seed: int,
        steps: int | None = None,
        drop_last: bool = False,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._packed = weight is not None
        targets = y
        if weight is not None:
            # Weights join the targets, so that one loader slices all three alike.
            named = y if isinstance(y, Mapping) else {"y": y}
            targets = {**{f"y/{name}": part for name, part in named.items()}, "weight": weight}
        self._single = not isinstance(y, Mapping)
        # Of several processes each has its part of every batch.
        self.loader = ArrayLoader(x, targets, batch_size, shuffle, seed, drop_last, *part, True)
        self.smallest = self.loader._smallest_batch
        self.steps = len(self.loader) if steps is None else steps
        self._epoch_steps = steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """Yield the batches to the end of the loader's epoch."""
        return map(self._weighted, self.loader)

    def _weighted(self, batch: tuple[Any, Any]) -> WeightedBatch:
        x, y = batch
        if not self._packed:
            return x, y, None
        weight = y.pop("weight")
        named = {name[2:]: part for name, part in y.items()}
        return x, named["y"] if self._single else named, weight

    def state_dict(self) -> dict[str, int]:
        """Return the loader's state."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position, with the saved seed, so that the order is the same."""
        own = self.loader.seed
        seed = checked_count("net.fit, resume", "seed", state.get("seed", own), 0)
        self._stream = None
        self.loader.seed = seed
        try:
            self.loader.load_state_dict(state)
        except BaseException:
            self.loader.seed = own
            raise


def ended(where: str, expected: str, received: str) -> DataError:
    """Make the error for data that end too early."""
    return DataError(
        f"{where}, batches",
        expected=expected,
        received=f"{received}, then the end",
        advice="a generator yields its batches once: pass a function of the epoch that returns "
        "batches, a loader, or fewer steps and epochs",
    )


class IteratedBatches(Batches):
    """Batches of ``source``, each ``(x, y)`` or ``(x, y, sample_weight)``.

    If the source has ``state_dict`` and ``load_state_dict``, it saves its own position. Otherwise
    batches are counted, and resumption draws and drops as many: exact if the source repeats its
    batches. ``begun`` is a started iteration, which the first pass continues. A batch of more than
    ``largest`` samples is refused.
    """

    def __init__(
        self,
        net: Net,
        source: Iterable[Any],
        steps: int | None,
        class_weight: Mapping[int, float] | None = None,
        learns: bool = False,
        begun: Iterator[Any] | None = None,
        where: str = "net.fit",
        largest: int | None = None,
    ) -> None:
        self.source = source
        self.where = where
        self._begun, self._largest = begun, largest
        self._net, self._learns = net, learns
        self._outputs = output_names(net)
        self._class_weight = class_weight
        self._keeps_position = keeps_position(source)
        self._endless = isinstance(source, Iterator)
        self._drawn = 0
        self._skip = 0
        self._epoch_steps = steps
        self.smallest = getattr(source, "_smallest_batch", None)
        self.counted = getattr(source, "counted", self.counted)
        self.last = getattr(source, "_batch_count", None)
        self.steps = self._length() if steps is None else steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """Yield the batches to the end of the source."""
        batches = iter(self.source) if self._begun is None else self._begun
        self._begun = None
        if not self._endless:
            self._drawn = 0
        for _ in range(self._skip):
            next(batches, None)
            self._drawn += 1
        self._skip = 0
        for item in batches:
            self._drawn += 1
            batch = self._checked(item)
            del item
            yield batch
            del batch
        if not self._endless:
            self._drawn = 0

    def state_dict(self) -> dict[str, int]:
        """Return the source's own position, or the number of batches drawn from it."""
        if self._keeps_position:
            state = self.source.state_dict()  # type: ignore[attr-defined]
            return {f"source.{key}": int(value) for key, value in state.items()}
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position."""
        self._stream = None
        if self._keeps_position and "drawn" not in state:
            plain = {key.partition(".")[2]: value for key, value in state.items()}
            self.source.load_state_dict(plain)  # type: ignore[attr-defined]
        elif "drawn" in state and not self._keeps_position:
            drawn = int(state["drawn"])
            # After its last batch the epoch is over, and the next pass skips nothing.
            self._skip = 0 if self._epoch_steps is None and drawn == self.steps else drawn
        else:
            raise DataError(
                "net.fit, resume",
                expected="the kind of data whose position was saved",
                received=f"a {type(self.source).__name__}",
                advice="resume with the same data",
            )

    def _length(self) -> int | None:
        """Return ``len(source)``, or None if it raises `TypeError`."""
        try:
            length = len(self.source)  # type: ignore[arg-type]
        except TypeError:
            return None
        if length == 0:
            raise ArgumentError(
                f"{self.where}, batches",
                expected="at least one batch",
                received=f"a {type(self.source).__name__} of length 0",
                advice="check how the data were read or selected",
            )
        return int(length)

    def _checked(self, item: Any) -> WeightedBatch:
        x, y, weight = parts_of(self.where, item)
        x = fed(f"{self.where}, batch x", self._net, x, self._learns)
        y = by_name(f"{self.where}, batch y", y, self._outputs, all_of_them=False)
        weight = joined_weight(y, weight, self._class_weight)
        # This process's part of a batch may be empty.
        count = sample_count({"x": x, "y": y, "sample_weight": weight}, self._may_be_empty)
        if self._largest is not None and count > self._largest:
            raise DataError(
                "net.fit, memory_budget",
                expected=f"batches of at most {self._largest} samples, as planned",
                received=f"a batch of {count}",
                advice="let the first batch be the largest, or set batch_size of the source",
            )
        return x, y, weight


def keeps_position(source: Any) -> bool:
    """Return whether a source of batches can save and load its position."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def parts_of(where: str, item: Any) -> tuple[Any, Any, Any]:
    """Return x, y and sample_weight or None of a batch. Errors: `DataError` for another item."""
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        raise DataError(
            f"{where}, batches",
            expected="batches (x, y) or (x, y, sample_weight)",
            received=f"a {type(item).__name__}"
            + (f" of {len(item)}" if isinstance(item, (tuple, list)) else ""),
            advice="yield x, y",
        )
    x, y, *weight = item
    return x, y, weight[0] if weight else None
