"""Constants and shapes computed while a graph is read.

Each node is worked out for every one of `BATCHES`: an extent that is 7 k for seven samples and
11 k for eleven is k times the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.base.arguments import Budget
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
from singanet.summary import multiply_adds
from singanet.types import Array

MOST = 1 << 22
"""Elements of an array that is worked out; views, and what comes from the file, may be larger."""

Folding = Callable[..., Any]


def fold(
    node: FileNode, values: Sequence[Value | None], budget: Budget, fixed_batch: int | None = None
) -> list[Known] | None:
    """The outputs of a node whose inputs are known, or a Shape; None if layers have to do it.

    ``fixed_batch`` is the number of samples that the file was exported for.
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
            else _Shaped(value.dims(batch))
            if isinstance(value, Tensor)
            else None
            for value in values
        ]
        asked = _Node(node, budget, fixed_batch)
        for array in given[_UNREAD.get(node.op, 0) :]:
            asked.reads(array)
        with np.errstate(all="ignore"):  # as in the graph, where nobody is told
            made = function(asked, *given)
        pairs.append(made if isinstance(made, list) else [made])
    name = next((v.name for v in values if isinstance(v, Known)), "") if node.op in _SAME else ""
    return [Known.of(a, b, name) for a, b in zip(*pairs, strict=True)]


def pay_view(x: Array, budget: Budget, itemsize: int) -> None:
    """Take off ``budget`` what a copy of a view takes, which may have more elements than it has."""
    if any(step == 0 and size > 1 for step, size in zip(x.strides, x.shape, strict=True)):
        budget.spend(itemsize * x.size)


class _Shaped:
    """A part of the net, of which only the shape is known."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)


class _Node:
    """What folding asks of a node."""

    def __init__(self, node: FileNode, budget: Budget, fixed_batch: int | None) -> None:
        self.op, self.opset, self.outputs = node.op, node.opset, node.outputs
        self.fixed_batch = fixed_batch
        self._attributes, self._budget = node.attributes, budget

    def get(self, name: str, usual: Any = None) -> Any:
        return self._attributes.get(name, usual)

    def ask(self, given: Array | None, name: str, usual: Any = None) -> Any:
        """What is an input of newer operators and an attribute of older ones."""
        return self.get(name, usual) if given is None else given.tolist()

    def room(self, *shape: int, itemsize: int = 8, most: int = MOST) -> tuple[int, ...]:
        """``shape``, if an array of it may be made, which is paid for."""
        sizes = tuple(int(size) for size in shape)
        count = prod(max(size, 1) for size in sizes)
        if min(sizes, default=0) < 0 or count > most:
            raise RefusedError(f"constants of at most {most} elements", f"shape {sizes}"[:80])
        self._budget.spend(itemsize * count)
        return sizes

    def reads(self, x: Any) -> None:
        """Pay for going through ``x``, which may be a view of far more elements than it has."""
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
    """A view if possible, else a copy, which comes off the budget."""
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
        # The same for each of the samples that the file was exported for: once, for any number.
        if target[k] != x.shape[k] == node.fixed_batch and alike(x, k):
            x = x.take([0], k)
    wanted = np.broadcast_shapes(x.shape, target)
    if prod(wanted) > 1 << 40:
        raise RefusedError("an array that can be made", f"shape {wanted}"[:80])
    return np.broadcast_to(x, wanted)


def _filled(node: _Node, shape: Array) -> Array:
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(())
    if value.dtype.kind not in "biuf":
        raise RefusedError("a value that is a number", f"type {value.dtype}")
    sizes = tuple(int(size) for size in shape.tolist())
    if min(sizes, default=0) < 0 or prod(sizes) > 1 << 40:
        raise RefusedError("an array that can be made", f"shape {sizes}"[:80])
    return np.broadcast_to(value, sizes)


def _range(node: _Node, start: Array, limit: Array, step: Array) -> Array:
    if step == 0:
        raise RefusedError("steps that go on", "0")
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


def _cast(node: _Node, x: Array, like: Array | None = None) -> Array:
    to = DTYPES.get(node.get("to")) if like is None else like.dtype
    if to is None:
        raise RefusedError("a type of numbers of 8 bits and more", f"type {node.get('to')}")
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
"""What moves and counts numbers: of any type, of none, and as views of very many."""

_SAME = {"Reshape", "Squeeze", "Unsqueeze", "Cast", "Transpose", "Identity", "Expand", "Flatten"}
"""Operators whose result still goes by the name of the array that they read."""

_UNREAD = dict.fromkeys((
    "Shape", "Size", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Expand",
    "Cast", "Transpose", "Identity"), 1)  # fmt: skip
"""Operators that give views of their first input; inputs of all others are read, and counted."""


OF_CONSTANTS = operators(MEASURED)
"""Operators whose layers run while a file is read.

What these take, in time and memory, the shapes tell of what goes in and comes out, and the products
in them; of others a hostile file could ask for windows, steps and scores without end.
"""

_SPREADING = operators(ELEMENT_BY_ELEMENT)

_EXACT = 1 << 53
"""Whole numbers up to this are floats of 64 bits, too."""

_LAST = np.iinfo(np.int64).max
"""What stands for the end of an axis, and goes through floats as the largest there is."""


def computed(node: FileNode, values: Sequence[Value | None], sheet: Sheet) -> list[Known | None]:
    """The outputs of ``node``, one of `OF_CONSTANTS` of which all inputs are known, by its layers.

    Errors: what converter and layers refuse, what takes more than the budget has, and whole
    numbers that floats do not tell from their neighbours.
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
            raise RefusedError("arrays of numbers", f"type {array.dtype}")
        pay_view(array, sheet.budget, 8)
        sheet.budget.spend(array.size // 8)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
            _expect_exact(array)
    if all(array.size for array in given.values()) or node.op not in _SPREADING:
        return _run(node, given, sheet)
    # Layers know no arrays without elements, which spread over others of one.
    some = {name: np.ones([size or 1 for size in a.shape], a.dtype) for name, a in given.items()}
    shapes = [np.broadcast_shapes(*(a.shape for a in arrays.values())) for arrays in (some, given)]
    made = _run(node, some, sheet)
    if any(each is None or each.shape != shapes[0] for each in made):
        raise RefusedError("arrays with elements", "one without any")
    return [np.empty(shapes[1], each.dtype) for each in made if each is not None]


def _run(node: FileNode, given: Mapping[str, Array], sheet: Sheet) -> list[Array | None]:
    """What the layers make: the first input is that of a net, its whole array one sample."""
    (name, first), *_ = given.items()
    whole = first.dtype.kind in "iub"
    # Floats of 32 bits have all whole numbers of 16.
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
    _pay([each for each in several if isinstance(each, Tensor)], dtype.itemsize, sheet.budget)
    values = SymbolValues({id(param): array for param, array in drawn.fills}, dtype)
    values.put(start, (first if whole else first.astype(dtype, copy=False))[None])
    return [
        _typed(values.of(each.symbol)[0], each.dtype) if isinstance(each, Tensor)
        else each.array if isinstance(each, Known) else None
        for each in several
    ]  # fmt: skip


def _pay(made: Sequence[Tensor], itemsize: int, budget: Budget) -> None:
    """Pay for what is made, for what is let go with the layers, and for the time of products."""
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
        if count > MOST:
            raise RefusedError(f"constants of at most {MOST} elements", f"shapes {outs}"[:80])
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
        raise RefusedError(f"whole numbers of at most {_EXACT}", f"{size.max()}")


def _typed(array: Array, dtype: np.dtype[Any]) -> Array:
    """``array`` in the graph's type. Errors: no whole numbers where these are wanted."""
    if dtype.kind not in "iu" or array.dtype.kind != "f":
        return array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        raise RefusedError("whole numbers", "what is no number, such as by a divisor of zero")
    _expect_exact(array.astype(np.float64))
    with np.errstate(invalid="ignore"):
        return np.where(array >= _LAST, _LAST, array.astype(np.int64)).astype(dtype)
