"""Shapes and draws without values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops import draws, transfers
from singanet.program.ir import Call, NotRecordableError, Token, map_arrays
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net


class NeedsValuesError(Exception):
    """A recording needs values, so that its kernels have to run."""


class ConcreteEvaluator:
    """Computes values while it records, as for layers whose Python has to see them."""

    computes = True

    def ufunc(
        self, ufunc: Any, method: str, given: Sequence[Any], outs: Sequence[Array], named: Any
    ) -> Any:
        """The result of the universal function on arrays that may be traced."""
        run, rest = getattr(ufunc, method), {key: _plain(value) for key, value in named.items()}
        if outs:
            rest["out"] = tuple(map(_plain, outs))
        return run(*map(_plain, given), **rest)

    def run(self, function: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
        """Call a function that fills arrays, which may be traced."""
        function(*_plain(arguments), **_plain(keywords))

    def copied(self, array: Array, dtype: Any, order: Any) -> Array:
        """A copy in that type and order."""
        return array.astype(dtype, order)

    def called(self, function: Callable[..., Any], given: Any, named: dict[str, Any]) -> Any:
        """The result of a function of NumPy on arrays that are not traced."""
        return function(*given, **named)

    def gathered(self, array: Array, index: Any) -> Array:
        """What ``index``, with arrays of integers in it, selects."""
        return np.asarray(array[index])

    def full(self, shape: Any, value: Any, dtype: Any, order: Any) -> Array:
        """An array of equal values."""
        return np.full(shape, value, dtype, order)

    def expect_values(self) -> None:
        """Refuse to go on where values are not there. Raises `NeedsValuesError`."""


class AbstractEvaluator(ConcreteEvaluator):
    """Computes nothing: arrays lie as results would, and untouched memory costs nothing.

    Functions of NumPy run, but for joins and `np.clip`, whose results are large.
    """

    computes = False

    def __init__(self) -> None:
        self._kinds: dict[Any, Any] = {}

    def ufunc(
        self, ufunc: Any, method: str, given: Sequence[Any], outs: Sequence[Array], named: Any
    ) -> Any:
        """Empty arrays of the shape, type and order of the results."""
        if outs:
            return tuple(outs) if len(outs) > 1 else outs[0]
        if method == "reduce":
            given = _without_reduced(given, named)
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        axes = [array.ndim for array in arrays]
        if method != "__call__" or ufunc.nout != 1 or not any(axes):
            return super().ufunc(ufunc, method, given, outs, named)
        kind = self._kind(ufunc, given, named)
        if ufunc.signature is None:
            return _like_operands(arrays, kind)
        if ufunc is np.matmul and min(axes) > 1:
            batch = _broadcast([array.shape[:-2] for array in arrays])
            return np.empty((*batch, arrays[0].shape[-2], arrays[1].shape[-1]), kind)
        return super().ufunc(ufunc, method, given, outs, named)

    def _kind(self, ufunc: Any, given: Sequence[Any], named: dict[str, Any]) -> Any:
        """The type of the results."""
        key = ufunc, *[v.dtype if isinstance(v, np.ndarray) else type(v) for v in given]
        found = None if named else self._kinds.get(key)
        if found is None:
            found = ufunc(*(_corner(value) for value in given), **_cornered(named)).dtype
            if not named:
                self._kinds[key] = found
        return found

    def run(self, function: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
        """Nothing: the arrays are there."""

    def copied(self, array: Array, dtype: Any, order: Any) -> Array:
        """An array as the copy would lie."""
        return np.empty_like(array, dtype, order)

    def called(self, function: Callable[..., Any], given: Any, named: dict[str, Any]) -> Any:
        """An empty array where that is known without the function."""
        if function in (np.concatenate, np.stack):
            return _joined(function, given, named)
        if function is np.clip and not named and isinstance(given[0], np.ndarray):
            arrays = [value for value in given if isinstance(value, np.ndarray) and value.ndim]
            if arrays:
                return _like_operands(arrays, function(*map(_corner, given)).dtype)
        return function(*given, **named)

    def gathered(self, array: Array, index: Any) -> Array:
        """As much of the first row, since the indices may be anything."""
        return super().gathered(array, map_arrays(index, lambda k: np.zeros(k.shape, np.intp)))

    def full(self, shape: Any, value: Any, dtype: Any, order: Any) -> Array:
        """An array that is not filled."""
        kind = np.asarray(value).dtype if dtype is None else dtype
        return np.empty(shape, kind, order)

    def expect_values(self) -> None:
        raise NeedsValuesError


def _plain(value: Any) -> Any:
    """Without tracing, also inside of tuples, lists and dicts."""
    return map_arrays(value, lambda array: array.view(np.ndarray))


def _corner(value: Any) -> Any:
    """The first element of every axis, which tells the type of a result."""
    if not isinstance(value, np.ndarray):
        return value
    return value.view(np.ndarray)[(slice(0, 1),) * value.ndim]


def _without_reduced(given: Sequence[Any], named: dict[str, Any]) -> Sequence[Any]:
    """The array to reduce with the first elements alone of the axes that go.

    The result is as it would be but for its values.
    """
    if named.get("where", True) is not True:
        return given
    (array,), axis = given, named.get("axis", 0)
    gone = (
        range(array.ndim)
        if axis is None
        else np.lib.array_utils.normalize_axis_tuple(axis, array.ndim)
    )
    first = tuple([slice(0, 1) if k in gone else slice(None) for k in range(array.ndim)])
    return (array.view(np.ndarray)[first],)


def _cornered(named: dict[str, Any]) -> dict[str, Any]:
    return {key: _corner(value) for key, value in named.items()}


def _like_operands(arrays: Sequence[Array], dtype: Any) -> Array:
    """The result of an element-wise function, in the memory order of its operands."""
    shapes = [array.shape for array in arrays]
    shape = _broadcast(shapes)
    if shape in shapes and all(array.flags.c_contiguous for array in arrays):
        return np.empty(shape, dtype)
    operands: Any = [*map(_plain, arrays), None]
    uses: Any = [["readonly"]] * len(arrays) + [["writeonly", "allocate"]]
    steps = np.nditer(
        operands,
        flags=["zerosize_ok", "multi_index"],
        op_flags=uses,
        op_dtypes=[None] * len(arrays) + [dtype],
    )
    made: Array = steps.operands[-1]
    return made


def _joined(function: Callable[..., Any], given: Any, named: dict[str, Any]) -> Array:
    """The result of `np.concatenate` or `np.stack`, in the order that the strides ask for."""
    arrays, *rest = given
    shapes = [np.shape(array) for array in arrays]
    # Two elements of each axis tell type and order as all of them do.
    few = [np.asarray(array)[(slice(0, 2),) * np.ndim(array)] for array in arrays]
    like: Array = function(few, *rest, **named)
    axis = named.get("axis", rest[0] if rest else 0)
    if axis is None or len({len(shape) for shape in shapes}) > 1 or like.size == 0:
        made: Array = function(*given, **named)
        return made
    axis %= like.ndim
    if function is np.stack:
        others, shape = set(shapes), list(shapes[0])
        shape.insert(axis, len(shapes))
    else:
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        shape = list(shapes[0])
        shape[axis] = sum(each[axis] for each in shapes)
    if len(others) > 1:
        # Its own error.
        function(*given, **named)
    return np.empty_like(like, shape=shape)


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    # Mostly they are equal, which NumPy takes long to see.
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    return np.broadcast_shapes(*shapes)


class Draws:
    """Draws through the kernels from whatever generator the net has then; others are refused."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def fill(self, *outs: Array) -> None:
        """Fill ``outs``, one after the other, with float32 numbers from 0 to below 1."""
        if not all(type(out) is np.ndarray for out in outs):
            transfers.fill(self._net.rng, self._net.device.ops.xp, *outs)
            return
        for out in outs:
            draws.fill(self._net.rng, out, *self._net.device.ops.team())

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(f"a draw by the layer itself, rng.{name}")


def without_unread(
    calls: Sequence[Call],
    tokens: Sequence[Token],
    moves: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> list[Call]:
    """``calls`` without those whose results are in the program's memory and not read later.

    Layers in evaluation make arrays that only a backward would read. What ``moves`` is read in the
    memory where it will lie.
    """
    needed: set[int] = set()
    kept = []
    for call in reversed(calls):
        outside = any(tokens[token].held is not None for token in call.writes)
        writes = [*call.writes, *(moves[token][0] for token in call.writes if token in moves)]
        if call.function is None or call.barrier or outside or not needed.isdisjoint(writes):
            needed.update(call.reads)
            kept.append(call)
    return kept[::-1]
