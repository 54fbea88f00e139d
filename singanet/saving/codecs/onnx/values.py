"""Values of an ONNX graph during reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.layers.symbol import Symbol
from singanet.ops import numpy_ops
from singanet.types import Array, Shape

BATCHES = (7, 11)
"""The batch sizes for which shapes are computed; a value equal for both is a constant."""

STEPS = (13, 19)
"""The stand-in sizes of free axes, with each of `BATCHES`."""


@dataclass(frozen=True)
class FileNode:
    """A node: its operator, and its inputs and outputs by name."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int


class RefusedError(Exception):
    """An unsupported use of an operator: expected and received."""

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(expected, received)
        self.expected, self.received = expected, received


@dataclass(frozen=True)
class Known:
    """An array that depends on sizes alone, for each of `BATCHES`.

    A constant is one array twice. ``name`` is the array's name in the file.
    """

    at: tuple[Array, Array]
    name: str = ""

    @classmethod
    def of(cls, first: Any, second: Any, name: str = "") -> Known:
        """Return both as arrays, as one object if they are equal."""
        a, b = np.asarray(first), np.asarray(second)
        same = a is b or (a.shape == b.shape and a.dtype == b.dtype and _equal(a, b))
        return cls((a, a) if same else (a, b), name)

    @property
    def constant(self) -> bool:
        """Return whether it is equal for any batch size."""
        return self.at[0] is self.at[1]

    @property
    def array(self) -> Array:
        """Return the constant. Errors: `RefusedError` if it depends on the batch size."""
        if not self.constant:
            raise RefusedError("a constant", "an array that depends on the batch size or the steps")
        return self.at[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.at[0].dtype


def _equal(a: Array, b: Array) -> bool:
    """Return whether arrays of one shape are equal; broadcast axes are compared once."""
    steps = zip(a.strides, b.strides, strict=True)
    once = tuple(slice(None, None if any(pair) else 1) for pair in steps)
    return bool(np.array_equal(a[once], b[once]))


@dataclass(frozen=True)
class Tensor:
    """A tensor of the net, whose arrays have the samples first.

    In the graph the samples are along ``axis``, merged with ``before`` major and ``after`` minor
    elements: the heads of (T, N·h, d) are minor. The other axes have the graph's order. With axis
    None, a whole array of the graph is one sample. ``dtype`` is the graph's; with ``whole`` the
    net's arrays are integers too, and otherwise floats.
    """

    symbol: Symbol
    dtype: np.dtype[Any]
    axis: int | None = 0
    before: int = 1
    after: int = 1
    whole: bool = False

    @property
    def sample(self) -> Shape:
        """The sample shape in the net."""
        return self.symbol.shape

    @property
    def folds(self) -> Shape:
        """The sizes in the sample that are merged with the axis of the samples."""
        return tuple(size for size in (self.before, self.after) if size > 1)

    @property
    def rank(self) -> int:
        """The number of axes in the graph."""
        return len(self.sample) - len(self.folds) + (self.axis is not None)

    def dims(self, batch: int) -> list[int]:
        """Return the shape in the graph for ``batch`` samples, with its stand-in of free axes."""
        steps = STEPS[BATCHES.index(batch) if batch in BATCHES else 0]
        sample = [steps if size == -1 else size for size in self.sample]
        if self.axis is None:
            return sample
        end = self.axis + len(self.folds)
        middle = self.before * batch * self.after
        return [*sample[: self.axis], middle, *sample[end:]]

    def place(self, axis: int) -> int:
        """Return the axis in the net of a graph axis. Errors: the axis of the samples."""
        k = axis + self.rank if axis < 0 else axis
        if not 0 <= k < self.rank:
            raise RefusedError(f"an axis of {self.rank} axes", f"axis {axis}")
        if k == self.axis:
            raise RefusedError(
                "an operation within samples", f"axis {axis}, the axis of the samples"
            )
        return k + 1 if self.axis is None or k < self.axis else k + len(self.folds)

    def like(self, symbol: Symbol, dtype: Any = None) -> Tensor:
        """Return a float tensor with its samples along the same axis."""
        kind = self.dtype if dtype is None else np.dtype(dtype)
        return replace(self, symbol=symbol, dtype=kind, whole=False)


Value = Known | Tensor


def norm_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front. Errors: `RefusedError` if it does not exist."""
    if not -rank <= axis < rank:
        raise RefusedError(f"an axis of {rank} axes", f"axis {axis}")
    return axis % rank if rank else 0


def resolved(target: Sequence[int], dims: Sequence[int], zeros: bool = False) -> list[int]:
    """Resolve ``target`` of a Reshape of ``dims``: 0 copies a size, -1 is the remainder."""
    wanted = [int(size) for size in target]
    if not zeros:
        if any(size == 0 and k >= len(dims) for k, size in enumerate(wanted)):
            raise RefusedError("an axis for each 0", f"{wanted}")
        wanted = [dims[k] if size == 0 else size for k, size in enumerate(wanted)]
    count = _product(dims)
    if wanted.count(-1) == 1:
        known = _product(size for size in wanted if size != -1)
        if known and count % known == 0:
            wanted[wanted.index(-1)] = count // known
    if any(size < 1 for size in wanted) or _product(wanted) != count:
        raise RefusedError(f"a shape for {count} elements", f"{list(target)}")
    return wanted


def alike(array: Array, axis: int) -> bool:
    """Return whether all elements along ``axis`` are equal."""
    return array.shape[axis] == 1 or bool((array == array.take([0], axis)).all())


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def slices(shape: Sequence[int], starts: Any, ends: Any, axes: Any, steps: Any) -> list[slice]:
    """Return the Python slices of a Slice along each axis."""
    found = [slice(None)] * len(shape)
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        k = norm_axis(axis, len(shape))
        size = shape[k]
        if step == 0:
            raise RefusedError("a step other than 0", "0")
        first = start + size if start < 0 else start
        last = end + size if end < 0 else end
        if step > 0:
            found[k] = slice(min(max(first, 0), size), min(max(last, 0), size), step)
        else:
            last = min(max(last, -1), size - 1)
            found[k] = slice(min(max(first, 0), size - 1), None if last < 0 else last, step)
    return found


def split_sizes(size: int, given: Sequence[int] | None, count: int) -> list[int]:
    """Return the sizes of the parts; by default equal ones, of which the last may be smaller."""
    if given is None:
        part = -(-size // max(count, 1))
        given = [*[part] * (count - 1), size - part * (count - 1)]
    if sum(given) != size or min(given) < 1 or len(given) != count:
        raise RefusedError(f"{count} parts of {size}", f"{list(given)}")
    return [int(part) for part in given]


class SymbolValues:
    """An evaluator that runs each layer once, in floats of ``dtype``.

    ``known`` maps ids of parameters to arrays, since parameters have no values yet.
    """

    def __init__(self, known: Mapping[int, Array], dtype: Any) -> None:
        self._known, self._dtype = known, np.dtype(dtype)
        self._made: dict[int, list[Array]] = {}

    def put(self, symbol: Symbol, array: Array) -> None:
        """Set the value of ``symbol`` to ``array``, with the samples first."""
        outputs = self._made.setdefault(symbol.call.born, [])
        outputs += [array] * (symbol.index + 1 - len(outputs))
        outputs[symbol.index] = array

    def of(self, symbol: Symbol) -> Array:
        """Return the value of ``symbol``, with the samples first."""
        stack = [symbol]
        while stack:
            needed = stack[-1]
            missing = [each for each in needed.call.inputs if each.call.born not in self._made]
            if needed.call.born in self._made:
                stack.pop()
            elif missing:
                stack += missing
            else:
                self._made[needed.call.born] = self._run(stack.pop())
        return self._made[symbol.call.born][symbol.index]

    def _run(self, symbol: Symbol) -> list[Array]:
        layer: Any = symbol.call.layer
        params = {
            suffix: np.asarray(self._known[id(param)], self._dtype).reshape(param.shape)
            for suffix, param in layer.params.items()
        }
        ctx = Context(numpy_ops, np.random.default_rng(0), params, False, dtype=self._dtype)
        given = [self._made[each.call.born][each.index] for each in symbol.call.inputs]
        with np.errstate(all="ignore"):  # ONNX has no floating-point warnings
            made = layer.forward(ctx, given[0] if len(given) == 1 else given)
        return list(made) if isinstance(made, (list, tuple)) else [made]


SAMPLES = 3


def extents(shape: Shape) -> Shape:
    """Return ``shape`` with a stand-in for free axes."""
    return tuple(STEPS[0] if size == -1 else size for size in shape)


class TrialValues(SymbolValues):
    """An evaluator with a few random samples for ``starts``.

    ``yes_or_no`` are boolean starts, all false in the first sample. ``known`` is as for
    `SymbolValues`.
    """

    def __init__(
        self, starts: Sequence[Symbol], yes_or_no: Sequence[Symbol], known: Mapping[int, Array]
    ) -> None:
        super().__init__(known, np.float64)
        rng = np.random.default_rng(0)
        for symbol in starts:
            drawn: Any = rng.standard_normal((SAMPLES, *extents(symbol.shape)))
            if any(symbol is each for each in yes_or_no):
                drawn = drawn > 0
                drawn[0] = False
                drawn[1, ..., : drawn.shape[-1] // 2] = False
            self.put(symbol, drawn)

    def _run(self, symbol: Symbol) -> list[Array]:
        if not symbol.call.inputs:
            # An unused input sets the batch size alone.
            return [np.zeros((SAMPLES, *extents(symbol.shape)))]
        return super()._run(symbol)


def agree(one: Array, other: Array) -> bool:
    """Return whether both are equal up to rounding, wherever the first is finite."""
    there = np.isfinite(one)
    most = float(np.abs(one[there]).max(initial=1.0))
    same = one.shape == other.shape
    return same and bool(np.all(np.abs(one[there] - other[there]) <= 1e-6 * most))


def numbers_in(symbols: Sequence[Symbol]) -> int:
    """Return the number of elements of the samples of ``symbols``."""
    return SAMPLES * sum(prod(extents(symbol.shape)) for symbol in symbols)
