"""Batches of arrays and loaders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, checked_count
from singanet.base.columns import by_rows, columns_of, has_frame, is_frame, is_sparse, numbers
from singanet.data import ArrayLoader
from singanet.data.dataset import expect_channels_first
from singanet.device import Device, cpu
from singanet.engine.feeds import as_array
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    StateMismatchError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.graph.building import ONLY_INPUT
from singanet.layers.geometry import Windowed
from singanet.loss.loss import spread
from singanet.params.param import Param
from singanet.types import Array, Shape


def joined_weight(
    y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None
) -> Array | None:
    """``sample_weight`` times the weight of each sample's class; None if neither is given.

    ``sample_weight`` is (B,), or (B, ...) for each position. With ``class_weight`` ``y`` is integer
    labels (B,) or (B, 1), 0 and 1 of any type, or one-hot rows (B, C). Errors: targets that name
    no class a sample.
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
    # Several labels a sample, and targets to be met, look like rows of classes but for their sums.
    if rows and bool(((labels == 0) | (labels == 1)).all()) and bool((labels.sum(1) == 1).all()):
        return np.asarray(labels.argmax(axis=1))
    real = ndim and labels.dtype.kind == "f" and bool(((labels == 0) | (labels == 1)).all())
    if rows or ndim not in (1, 2) or not (real or labels.dtype.kind in "iub"):
        raise DataError(
            "net.fit, class_weight",
            expected="labels, one a sample: integers, or 0 and 1; or one-hot rows of a single 1",
            received=f"targets of shape {labels.shape} and type {labels.dtype}"
            if ndim
            else f"a {type(y).__name__}",
            advice="pass sample_weight instead",
        )
    return np.asarray(labels.reshape(-1))


def input_names(net: Net) -> list[str]:
    """The input layers, as symbols gave them, else in topological order."""
    return list(net.ports().inputs)


def output_names(net: Net) -> list[str]:
    """The output layers, as symbols gave them, else in topological order."""
    return list(dict.fromkeys(name for name, _ in net.ports().outputs))


def fed(where: str, net: Net, x: Any, learns: bool = False) -> Any:
    """Samples ``x`` as arrays for the inputs of ``net``, those of frames by their columns.

    Where the net ``learns`` of them it remembers the columns, and a list of layers that lacks its
    input shape is set up for theirs. Errors: those of `by_name`, of `Intake.arrays` and of `build`.
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
    """Refuse images with channels last where the first layer of a list has windows over pixels.

    Nobody has said what the axes are, so that the rows of pixels would be taken for channels.
    """
    first = net.pending[0]
    if isinstance(first, Windowed):
        said = f"if there are {shape[1]} channels, pass input_shape={shape[1:]} to"
        expect_channels_first(where, shape, f"{said} {first.name!r}")


def _as_input(where: str, value: Any) -> Any:
    return by_rows(where, value) if is_sparse(value) else as_array(where, value)


def by_name(where: str, data: Any, names: Sequence[str], all_of_them: bool) -> Any:
    """``data`` as an array, or as a dict of arrays by the layer names ``names``.

    A list stands for arrays in the order of ``names`` where there are several of these. The dict
    of a single layer is unwrapped. Of a frame several layers get the columns of their names. What
    is wanted ``all_of_them``, inputs, may be sparse. Errors: an unknown name; a missing one with
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
    """The samples ``part`` of an array, or of each array of a dict; None stays None."""
    if isinstance(data, Mapping):
        return {name: cut(array, part) for name, array in data.items()}
    if isinstance(data, (list, tuple)):
        return [cut(array, part) for array in data]
    return None if data is None else data[part]


def sample_count(
    parts: Mapping[str, Any], may_be_empty: bool = False, where: str = "net.fit"
) -> int:
    """How many samples all arrays of ``parts`` have.

    Errors: `DataError` for unequal numbers, and for no samples unless ``_may_be_empty``.
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
            expected="equally many samples everywhere",
            received=", ".join(f"{name}: {length}" for name, length in lengths.items()),
            advice="give each sample its target",
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
                received=repr(name),
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
    """Copies of ``saved`` on ``device``: of all the ``params``, floats of their shapes.

    Errors: `StateMismatchError` naming one that is missing, or not so.
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


def copied(array: Array) -> Array:
    """A copy on the CPU."""
    return np.array(cpu().put(array))


WeightedBatch: TypeAlias = tuple[Any, Any, Array | None]
"""``(x, y, sample_weight or None)``."""


class Batches(ABC):
    """Epochs of batches. ``steps`` is the number of batches of an epoch, None if unknown.

    With a given number of steps an epoch ends after them, and the next goes on where it ended,
    from the front again when the data have been gone through.
    """

    steps: int | None
    smallest: int | None
    """Samples of the smallest batch, None if unknown."""
    last: int | None = None
    """How many batches the epoch before had, None before its end."""
    counted: tuple[str, int] = ("samples", 1)
    """What a speed is told in, and how many of these a sample has."""
    _may_be_empty = False
    """Whether other processes may have batches where this one has none."""
    where = "net.fit"
    """Who was given the data, as errors say it."""
    _given: int | None = None
    _stream: Iterator[WeightedBatch] | None = None

    @property
    def expected(self) -> int | None:
        """Batches of an epoch: ``steps``, or else as many as before; None before the first."""
        return self.steps or self.last

    def epoch(self, done: int = 0) -> Iterator[WeightedBatch]:
        """The batches of an epoch of which ``done`` were handed out before.

        Errors: the data end before the epoch does.
        """
        if self._given is None:
            if self.steps is not None and 0 < self.steps <= done:
                return
            count = done
            for item in self.one_pass():
                count += 1
                yield item
                # Nobody holds a batch while the next one is drawn: there would be memory for two.
                del item
            if count == 0 and not self._may_be_empty:
                raise ended(self.where, "at least one batch", "none")
            self.last = count
            return
        for k in range(done, self._given):
            batch = self._next()
            if batch is None:
                raise ended(self.where, f"{self._given} batches an epoch", f"{k}")
            yield batch
            del batch

    def _next(self) -> WeightedBatch | None:
        """The next batch across passes, None if two new passes have none.

        One may have none: it goes on from a position saved after the last batch.
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
        """The batches to the end of the data."""

    @abstractmethod
    def state_dict(self) -> dict[str, int]:
        """The position, as whole numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position."""


class ArrayBatches(Batches):
    """Batches of arrays in memory; order as `ArrayLoader` has it."""

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
            # One more entry beside the targets, so that one loader cuts all three alike.
            named = y if isinstance(y, Mapping) else {"y": y}
            targets = {**{f"y/{name}": part for name, part in named.items()}, "weight": weight}
        self._single = not isinstance(y, Mapping)
        # Of several processes each has its part of every batch.
        self.loader = ArrayLoader(x, targets, batch_size, shuffle, seed, drop_last, *part, True)
        self.smallest = self.loader._smallest_batch
        self.steps = len(self.loader) if steps is None else steps
        self._given = steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the loader's epoch."""
        return map(self._weighted, self.loader)

    def _weighted(self, batch: tuple[Any, Any]) -> WeightedBatch:
        x, y = batch
        if not self._packed:
            return x, y, None
        weight = y.pop("weight")
        named = {name[2:]: part for name, part in y.items()}
        return x, named["y"] if self._single else named, weight

    def state_dict(self) -> dict[str, int]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go there; the seed becomes the one that was saved, for the order to be the same."""
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
    """The error for data that end too early."""
    return DataError(
        f"{where}, batches",
        expected=expected,
        received=f"{received}, then the end",
        advice="a generator ends once and for all: pass a function of the epoch that returns "
        "batches, a loader, or fewer steps and epochs",
    )


class IteratedBatches(Batches):
    """Batches of ``source``, each ``(x, y)`` or ``(x, y, sample_weight)``.

    A source with ``state_dict`` and ``load_state_dict`` keeps its own position. Of any other the
    batches handed out are counted, and a position is found again by drawing and dropping as
    many: exact where the source gives the same batches again. The first pass goes on with an
    iteration that was ``begun`` before. Batches of more than the ``largest`` samples are refused.
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
        self._given = steps
        self.smallest = getattr(source, "_smallest_batch", None)
        self.counted = getattr(source, "counted", self.counted)
        self.steps = self._length() if steps is None else steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the source."""
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
        """The source's own position, or how many batches were drawn from it."""
        if self._keeps_position:
            state = self.source.state_dict()  # type: ignore[attr-defined]
            return {f"source.{key}": int(value) for key, value in state.items()}
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position."""
        self._stream = None
        if self._keeps_position and "drawn" not in state:
            plain = {key.partition(".")[2]: value for key, value in state.items()}
            self.source.load_state_dict(plain)  # type: ignore[attr-defined]
        elif "drawn" in state and not self._keeps_position:
            self._skip = int(state["drawn"])
        else:
            raise DataError(
                "net.fit, resume",
                expected="the kind of data whose position was saved",
                received=f"a {type(self.source).__name__}",
                advice="resume with the same data",
            )

    def _length(self) -> int | None:
        """``len(source)``, None without one: asking some iterables raises."""
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
        # Of a batch of all processes a part may be empty.
        count = sample_count({"x": x, "y": y, "sample_weight": weight}, self._may_be_empty)
        if self._largest is not None and count > self._largest:
            raise DataError(
                "net.fit, memory_budget",
                expected=f"batches of at most {self._largest} samples, as the steps were planned",
                received=f"a batch of {count}",
                advice="let the first batch be the largest, or batch_size of the source say it",
            )
        return x, y, weight


def keeps_position(source: Any) -> bool:
    """Whether a source of batches says where it is, and goes there."""
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def parts_of(where: str, item: Any) -> tuple[Any, Any, Any]:
    """x, y and sample_weight or None of a batch. Errors: `DataError` for what is no batch."""
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
