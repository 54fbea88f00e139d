"""Constant folding: constants and shapes computed while a graph is read.

Each node is evaluated for both batch sizes of `BATCHES`: a size that is 7 k for seven samples and
11 k for eleven is k times the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.base.arguments import Budget
from singanet.layers.counting import multiply_adds
from singanet.saving.codecs.describe import ELEMENT_BY_ELEMENT, MEASURED, operators
from singanet.saving.codecs.onnx.use import Sheet, Use
from singanet.saving.codecs.onnx.values import (
    BATCHES,
    FileNode,
    Known,
    RefusedError,
    SymbolValues,
    Tensor,
    Value,
    alike,
    norm_axis,
    resolved,
    slices,
    split_sizes,
)
from singanet.saving.codecs.onnx.written import DTYPES
from singanet.types import Array

MOST = 1 << 22
"""The maximum elements of a computed array; views and arrays of the file may be larger."""

Folding = Callable[..., Any]


def fold(
    node: FileNode, values: Sequence[Value | None], budget: Budget, fixed_batch: int | None = None
) -> list[Known] | None:
    """Return the outputs of a node that needs no layers: of known inputs, shapes or types.

    ``fixed_batch`` is the batch size that the file was exported with, if any.
    """
    function = FOLDS.get(node.op)
    if function is None:
        return None
    pairs: list[Any] = []
    for batch, k in zip(BATCHES, (0, 1), strict=True):
        if k and all(isinstance(v, Known) and v.constant for v in values if v is not None):
            pairs.append(pairs[0])
            continue
        given = [
            value.at[k]
            if isinstance(value, Known)
            else _Shaped(value.dims(batch), value.dtype)
            if isinstance(value, Tensor)
            else None
            for value in values
        ]
        asked = _Node(node, budget, fixed_batch)
        for array in given[_UNREAD.get(node.op, 0) :]:
            asked.reads(array)
        with np.errstate(all="ignore"):  # ONNX has no floating-point warnings
            made = function(asked, *given)
        pairs.append(made if isinstance(made, list) else [made])
    name = next((v.name for v in values if isinstance(v, Known)), "") if node.op in _SAME else ""
    return [Known.of(a, b, name) for a, b in zip(*pairs, strict=True)]


def pay_view(x: Array, budget: Budget, itemsize: int) -> None:
    """Spend the bytes of a copy of ``x`` if ``x`` is a broadcast view."""
    if any(step == 0 and size > 1 for step, size in zip(x.strides, x.shape, strict=True)):
        budget.spend(itemsize * x.size)


class _Shaped:
    """A tensor of the net, of known shape and type only."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = tuple(shape), dtype


class _Node:
    """A node's operator and attributes, and the budget of its folding."""

    def __init__(self, node: FileNode, budget: Budget, fixed_batch: int | None) -> None:
        self.op, self.opset, self.outputs = node.op, node.opset, node.outputs
        self.fixed_batch = fixed_batch
        self._attributes, self._budget = node.attributes, budget

    def get(self, name: str, usual: Any = None) -> Any:
        return self._attributes.get(name, usual)

    def ask(self, given: Array | None, name: str, usual: Any = None) -> Any:
        """Return an input of newer operator versions that is an attribute in older ones."""
        return self.get(name, usual) if given is None else given.tolist()

    def room(self, *shape: int, itemsize: int = 8, most: int = MOST) -> tuple[int, ...]:
        """Return ``shape`` after spending the bytes of an array of it. Errors: `RefusedError`."""
        sizes = tuple(int(size) for size in shape)
        count = prod(max(size, 1) for size in sizes)
        if min(sizes, default=0) < 0 or count > most:
            raise RefusedError(f"constants of at most {most} elements", f"shape {sizes}"[:80])
        self._budget.spend(itemsize * count)
        return sizes

    def reads(self, x: Any) -> None:
        """Spend the cost of reading ``x``, which may be a broadcast view."""
        if isinstance(x, np.ndarray):
            pay_view(x, self._budget, 1)
            self._budget.spend(x.size // 8)


def _shape(node: _Node, x: Any) -> Array:
    rank = len(x.shape)
    start, end = node.get("start", 0), node.get("end", rank)
    return np.array(x.shape[slice(start, end)], np.int64)


def _reshape(node: _Node, x: Array, shape: Array | None = None) -> Array:
    target = node.ask(shape, "shape")
    if x.size == 0:
        return x.reshape([int(size) for size in target])
    return _reshaped(node, x, resolved(target, x.shape, bool(node.get("allowzero", 0))))


def _reshaped(node: _Node, x: Array, shape: Sequence[int]) -> Array:
    """Return a view if possible, and otherwise a copy, paid from the budget."""
    try:
        return np.reshape(x, shape, copy=False)
    except ValueError:
        node.reads(x)
        node.room(x.size, itemsize=x.itemsize, most=max(MOST, x.size))
        return x.reshape(shape)


def _squeeze(node: _Node, x: Array, axes: Array | None = None) -> Array:
    given = node.ask(axes, "axes")
    return np.squeeze(x, None if given is None else tuple(np.atleast_1d(given).tolist()))


def _unsqueeze(node: _Node, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(np.atleast_1d(node.ask(axes, "axes")).tolist()))


def _slice(node: _Node, x: Array, *given: Array | None) -> Array:
    starts, ends, axes, steps = (
        node.ask(given[k] if k < len(given) else None, name)
        for k, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    return x[tuple(slices(x.shape, starts, ends, axes, steps))]


def _gather(node: _Node, x: Array, indices: Array) -> Array:
    axis = norm_axis(node.get("axis", 0), x.ndim)
    node.room(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return np.take(x, indices, axis)


def _concat(node: _Node, *x: Array) -> Array:
    node.room(sum(a.size for a in x))
    return np.concatenate([np.atleast_1d(a) for a in x], node.get("axis", 0))


def _split(node: _Node, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = norm_axis(node.get("axis", 0), x.ndim)
    points = split_sizes(x.shape[axis], node.ask(sizes, "split"), len(node.outputs))
    return np.split(x, np.cumsum(points)[:-1].tolist(), axis)


def _expand(node: _Node, x: Array, shape: Array) -> Array:
    target = tuple(shape.tolist())
    for k in range(-min(x.ndim, len(target)), 0):
        # Equal for each sample of the exported batch: one copy serves any batch size.
        if target[k] != x.shape[k] == node.fixed_batch and alike(x, k):
            x = x.take([0], k)
    wanted = np.broadcast_shapes(x.shape, target)
    if prod(wanted) > 1 << 40:
        raise RefusedError("an array that fits in memory", f"shape {wanted}"[:80])
    return np.broadcast_to(x, wanted)


def _filled(node: _Node, shape: Array) -> Array:
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(())
    if value.dtype.kind not in "biuf":
        raise RefusedError("a numeric value", f"type {value.dtype}")
    sizes = tuple(int(size) for size in shape.tolist())
    if min(sizes, default=0) < 0 or prod(sizes) > 1 << 40:
        raise RefusedError("an array that fits in memory", f"shape {sizes}"[:80])
    return np.broadcast_to(value, sizes)


def _range(node: _Node, start: Array, limit: Array, step: Array) -> Array:
    if step == 0:
        raise RefusedError("a step other than 0", "0")
    node.room(max(0, int(-(-(float(limit) - float(start)) // float(step)))))
    return np.arange(start.item(), limit.item(), step.item()).astype(start.dtype)


def _prod(node: _Node, x: Array, axes: Array | None = None) -> Array:
    given = node.ask(axes, "axes")
    if not given and node.get("noop_with_empty_axes", 0):
        return x
    over = tuple(norm_axis(axis, x.ndim) for axis in given) if given else None
    left = [size for k, size in enumerate(x.shape) if over is not None and k not in over]
    node.room(*left, itemsize=x.itemsize)
    made = np.prod(x, axis=over, keepdims=bool(node.get("keepdims", 1)))
    return np.asarray(made).astype(x.dtype, copy=False)


def _cast(node: _Node, x: Array, like: Any = None) -> Array:
    to = DTYPES.get(node.get("to")) if like is None else like.dtype
    if to is None:
        raise RefusedError("a numeric type of at least 8 bits", f"type {node.get('to')}")
    if x.dtype == to:
        return x
    if x.size and not any(x.strides):
        return np.broadcast_to(x.flat[0].astype(to), x.shape)
    node.reads(x)
    node.room(x.size, itemsize=to.itemsize, most=4 * MOST)
    return x.astype(to)


def _transpose(node: _Node, x: Array) -> Array:
    return x.transpose(node.get("perm"))


def _flatten(node: _Node, x: Array) -> Array:
    axis = node.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return _reshaped(node, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _non_zero(node: _Node, x: Array) -> Array:
    node.room(x.ndim, x.size)
    return np.array(np.nonzero(x), np.int64)


FOLDS: Mapping[str, Folding] = {
    "Shape": _shape,
    "Size": lambda node, x: np.array(prod(x.shape), np.int64),
    "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Flatten": _flatten,
    "Slice": _slice, "Gather": _gather, "Concat": _concat, "Split": _split, "Expand": _expand,
    "ConstantOfShape": _filled, "Range": _range, "Cast": _cast,
    "CastLike": _cast, "Transpose": _transpose, "Identity": lambda node, x: x,
    "NonZero": _non_zero, "ReduceProd": _prod,
}  # fmt: skip
"""Operators that move and count elements of any type; empty arrays and broadcast views too."""

_SAME = {"Reshape", "Squeeze", "Unsqueeze", "Cast", "Transpose", "Identity", "Expand", "Flatten"}
"""Operators whose result keeps the name of their input array."""

_UNREAD = dict.fromkeys((
    "Shape", "Size", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Expand",
    "Cast", "Transpose", "Identity"), 1)  # fmt: skip
"""Operators that return a view of their first input; other inputs are read and paid for."""


OF_CONSTANTS = operators(MEASURED)
"""Operators whose layers run while a file is read.

Their time and memory follow from the shapes and from the multiply-adds. Other operators, with
windows, steps or scores, would let a hostile file ask for unbounded work.
"""

_SPREADING = operators(ELEMENT_BY_ELEMENT)

_EXACT = 1 << 53
"""Integers up to this size are exact in float64."""

_LAST = np.iinfo(np.int64).max
"""The integer for the end of an axis; casts through floats preserve it as the maximum."""


def computed(node: FileNode, values: Sequence[Value | None], sheet: Sheet) -> list[Known | None]:
    """Return the outputs of ``node``, an operator of `OF_CONSTANTS` with known inputs.

    Layers compute them. Errors: `RefusedError` if the converter or a layer refuses the node, if the
    budget is exhausted, or if integers are too large to be exact as floats.
    """
    known = dict(zip(node.inputs, values, strict=True))
    given = {name: value for name, value in known.items() if isinstance(value, Known)}
    once = all(value.constant for value in given.values())
    runs = [
        _outputs(node, {name: value.at[k] for name, value in given.items()}, sheet)
        for k in range(1 if once else len(BATCHES))
    ]
    pairs = zip(runs[0], runs[-1], strict=True)
    return [None if a is None or b is None else Known.of(a, b) for a, b in pairs]


def _outputs(node: FileNode, given: Mapping[str, Array], sheet: Sheet) -> list[Array | None]:
    for array in given.values():
        if array.dtype.kind not in "biuf":
            raise RefusedError("numeric arrays", f"type {array.dtype}")
        pay_view(array, sheet.budget, 8)
        sheet.budget.spend(array.size // 8)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
            _expect_exact(array)
    if all(array.size for array in given.values()) or node.op not in _SPREADING:
        return _run(node, given, sheet)
    # Layers refuse empty arrays, which broadcast against axes of size 1.
    some = {name: np.ones([size or 1 for size in a.shape], a.dtype) for name, a in given.items()}
    shapes = [np.broadcast_shapes(*(a.shape for a in arrays.values())) for arrays in (some, given)]
    made = _run(node, some, sheet)
    if any(each is None or each.shape != shapes[0] for each in made):
        raise RefusedError("non-empty arrays", "an empty array")
    return [np.empty(shapes[1], each.dtype) for each in made if each is not None]


def _run(node: FileNode, given: Mapping[str, Array], sheet: Sheet) -> list[Array | None]:
    """Run the layers of a node; the first array is the net's input, as one sample."""
    (name, first), *_ = given.items()
    whole = first.dtype.kind in "iub"
    # float32 represents all 16-bit integers exactly.
    most = {"f": 4, "i": 2, "u": 2, "b": 1}
    wide = any(a.dtype.itemsize > most[a.dtype.kind] for a in given.values())
    dtype = np.dtype("f8" if wide else "f4")
    drawn = Sheet(sheet.budget, readers=sheet.readers)
    start = layers.Input(drawn.names.take("x"), first.shape, first.dtype.name if whole else None)
    drawn.inputs.append(start)
    drawn.values.update({each: Known((array, array)) for each, array in given.items()})
    drawn.values[name] = Tensor(start, first.dtype, None, whole=whole)
    made = OF_CONSTANTS[node.op](Use(drawn, node))
    several = list(made) if isinstance(made, (list, tuple)) else [made]
    # An array of the file may be large, and what has no more elements is, too.
    largest = max([MOST, *(a.size for a in given.values() if all(a.strides))])
    _pay(
        [each for each in several if isinstance(each, Tensor)],
        dtype.itemsize,
        sheet.budget,
        largest,
    )
    values = SymbolValues({id(param): array for param, array in drawn.fills}, dtype)
    values.put(start, (first if whole else first.astype(dtype, copy=False))[None])
    return [
        _typed(values.of(each.symbol)[0], each.dtype) if isinstance(each, Tensor)
        else each.array if isinstance(each, Known) else None
        for each in several
    ]  # fmt: skip


def _pay(made: Sequence[Tensor], itemsize: int, budget: Budget, most: int) -> None:
    """Spend the bytes of results and intermediate arrays, and the time of matrix products."""
    seen: set[int] = set()
    stack = [each.symbol.call for each in made]
    total = 0
    while stack:
        call = stack.pop()
        if call.born in seen or not call.inputs:
            continue
        seen.add(call.born)
        layer: Any = call.layer
        shapes = [each.shape for each in call.inputs]
        outs = layer.out_shapes if isinstance(layer.out_shapes, list) else [layer.out_shapes]
        count = sum(map(prod, outs))
        if count > most:
            raise RefusedError(f"constants of at most {most} elements", f"shapes {outs}"[:80])
        total += itemsize * count
        budget.spend((multiply_adds(layer, shapes, outs) or 0) // 32)
        stack += [symbol.call for symbol in call.inputs]
    if not budget.has(total):
        budget.spend(total)
    for each in made:
        budget.spend(each.dtype.itemsize * prod(each.sample))


def _expect_exact(array: Array) -> None:
    size = np.abs(array)
    if bool(((size > _EXACT) & (size != _LAST)).any()):
        raise RefusedError(f"integers of at most {_EXACT}", f"{size.max()}")


def _typed(array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast ``array`` to the graph's type.

    Errors: `RefusedError` if an integer type gets NaN or inf.
    """
    if dtype.kind not in "iu" or array.dtype.kind != "f":
        return array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        raise RefusedError("integers", "NaN or infinity, for example from a division by zero")
    _expect_exact(array.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return np.where(array >= _LAST, _LAST, array.astype(np.int64)).astype(dtype)
