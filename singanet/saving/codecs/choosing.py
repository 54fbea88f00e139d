"""Codecs of selections and reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.saving.codecs.arithmetic import scaled
from singanet.saving.codecs.codec import LayerCodec
from singanet.saving.codecs.moving import part, without
from singanet.saving.codecs.onnx import (
    BATCHES,
    Converter,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
    norm_axis,
)
from singanet.types import Array


def _write_gather(g: WrittenGraph, layer: layers.Gather, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    if layer.indices is not None:
        axis = layer._at(len(shapes) + 1)
        return g.node("Gather", xs[0], g.ints(layer.indices, "indices"), axis=axis)
    out: Any = layer.out_shapes
    axis = layer._at(len(out) + 1)
    # Both broadcast to a common shape, except along the axis.
    x, indices = (
        g.node("Expand", value, g.ints([1, *out[: axis - 1], shape[axis - 1], *out[axis:]], "all"))
        for value, shape in zip(xs, shapes, strict=True)
    )
    return g.node("GatherElements", x, g.cast(indices, np.int64), axis=axis)


def _write_top_indices(g: WrittenGraph, layer: layers.TopIndices, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    axis = layer._at(len(shape) + 1)
    if layer.k == 1:
        return g.node("ArgMax" if layer.largest else "ArgMin", xs[0], axis=axis, dtype=np.int64)
    sides = (xs[0], g.ints([layer.k], "k"))
    _, found = g.nodes_of("TopK", 2, *sides, axis=axis, largest=int(layer.largest))
    found.dtype = np.dtype(np.int64)
    return found


def _read_gather(use: Use) -> Tensor:
    data, indices = use.value(0), use.value(1)
    if isinstance(data, Known):
        return _read_looked_up(use, data, indices)
    if not isinstance(data, Tensor) or not isinstance(indices, Known):
        raise RefusedError("a constant table, or constant indices", "two inputs of the net")
    axis = norm_axis(use.attribute("axis", 0), data.rank)
    data.place(axis)
    size, wanted = data.dims(BATCHES[0])[axis], indices.array
    if wanted.size == 0 or wanted.min() < -size or wanted.max() >= size:
        raise RefusedError(f"indices from 0 to {size - 1}", f"{wanted.tolist()}"[:80])
    if wanted.ndim == 0:
        return part(
            use, data, [int(wanted) if k == axis else slice(None) for k in range(data.rank)]
        )
    flat = (wanted.reshape(-1) % size).tolist()
    layer = layers.Gather(use.name(), data.place(axis), flat)
    made = replace(data, symbol=use.draw(layer, data))
    if wanted.ndim == 1:
        return made
    return by_dims(use, made, lambda d: [*d[:axis], *wanted.shape, *d[axis + 1 :]])


def _read_gather_elements(use: Use) -> Tensor:
    """Convert GatherElements: indices for each sample."""
    data, indices = use.value(0), use.value(1)
    if not isinstance(data, Tensor) or not isinstance(indices, Tensor):
        raise RefusedError("two inputs of the net", "a constant")
    place = data.place(norm_axis(use.attribute("axis", 0), data.rank))
    others = [
        sizes for k, sizes in enumerate(zip(data.sample, indices.sample, strict=True), 1)
        if k != place
    ]  # fmt: skip
    if (data.axis, data.folds) != (indices.axis, indices.folds) or any(a != b for a, b in others):
        raise RefusedError("indices with the shape of the samples", f"{indices.sample}")
    if not indices.whole:
        indices = replace(indices, symbol=_read_integers(use, indices), whole=True)
    layer = layers.Gather(use.name(), place)
    return replace(data, symbol=use.draw(layer, data, indices))


def _read_integers(use: Use, x: Tensor) -> Any:
    name = use.sheet.names.take(f"{use.node.name.strip('/') or use.node.op.lower()}.indices")
    return layers.Cast(name, "int64")(x.symbol)


def _read_looked_up(use: Use, data: Known, indices: Any) -> Tensor:
    """Convert a lookup of rows of a constant to an `Embedding`; small integers become floats."""
    table, axis = data.array, norm_axis(use.attribute("axis", 0), data.array.ndim)
    exact = table.dtype.kind in "iu" and table.dtype.itemsize <= 2
    if axis != 0 or not (exact or table.dtype.kind == "f"):
        raise RefusedError("rows of a table of floats", f"axis {axis} of {table.dtype}")
    rows = table.reshape(len(table), -1)
    layer = layers.Embedding(use.name(0), *rows.shape)
    if not indices.whole:
        indices = replace(indices, symbol=_read_integers(use, indices), whole=True)
    # A one-dimensional table has one column.
    symbol = use.draw(layer, indices, weight=rows)
    made = indices.like(symbol, table.dtype)
    return replace(made, symbol=use.reshaped(made, (*indices.sample, *table.shape[1:])))


def _read_put_elements(use: Use, numbers: Array, more: Array) -> Array:
    found = numbers.copy()
    np.put_along_axis(found, use.needed(1), more, use.attribute("axis", 0))
    return found


def _read_put_slices(use: Use, numbers: Array, more: Array) -> Array:
    found = numbers.copy()
    found[tuple(np.moveaxis(use.needed(1), -1, 0))] = more
    return found


def _read_take_slices(use: Use, numbers: Array, more: Array) -> Array:
    return numbers[tuple(np.moveaxis(use.needed(1), -1, 0))]


def _read_compressed(use: Use, numbers: Array, more: Array) -> Array:
    axis = use.attribute("axis")
    return np.compress(use.needed(1), numbers, axis)


def _read_by_numbers(move: Callable[[Use, Array, Array], Array]) -> Converter:
    """Return a converter of a node with constant indices to one `Gather`, found by a trial."""

    def convert(use: Use) -> Tensor:
        x = use.tensor()
        if x.axis is not None or use.attribute("reduction", "none") != "none":
            raise RefusedError("whole arrays as samples, without reduction", f"axis {x.axis}")
        if use.attribute("batch_dims", 0):
            raise RefusedError("batch_dims 0", f"{use.attribute('batch_dims')}")
        parts = [x] if len(use.values) < 3 else [x, use.tensor(2)]
        sizes = [prod(part.sample) for part in parts]
        if sum(sizes) > 1 << 16:
            raise RefusedError("at most 65536 elements", f"{sum(sizes)}")
        flat = [each.like(use.reshaped(each, (k,))) for each, k in zip(parts, sizes, strict=True)]
        numbers = np.arange(sizes[0]).reshape(x.sample)
        more = sizes[0] + np.arange(sizes[-1]).reshape(parts[-1].sample)
        found = np.asarray(move(use, numbers, more))
        both = flat[0]
        if len(flat) > 1:
            both = both.like(use.draw(layers.Concat(use.name(), 1), *flat))
        layer = layers.Gather(use.name(), 1, found.reshape(-1).tolist())
        made = x.like(use.draw(layer, both))
        return made.like(use.reshaped(made, found.shape))

    return convert


def _read_top(use: Use, x: Tensor, axis: int, count: int, largest: bool) -> Tensor:
    """Return the indices of the ``count`` extreme elements along an axis of the graph."""
    layer = layers.TopIndices(use.name(), count, x.place(axis), largest)
    return replace(x, symbol=use.draw(layer, x), dtype=np.dtype(np.int64), whole=True)


def _read_extreme(largest: bool) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axis = norm_axis(use.attribute("axis", 0), x.rank)
        last, size = bool(use.attribute("select_last_index", 0)), x.dims(BATCHES[0])[axis]
        if last:
            turned = [slice(None)] * axis + [slice(None, None, -1)]
            x = part(use, x, [*turned, *[slice(None)] * (x.rank - axis - 1)])
        found = _read_top(use, x, axis, 1, largest)
        if last:
            found = scaled(use, use.floats(found), -1.0, size - 1.0)
            found = replace(found, symbol=_read_integers(use, found), whole=True)
        found = replace(found, dtype=np.dtype(np.int64))
        return found if use.attribute("keepdims", 1) else without(use, found, [axis])

    return convert


def _read_top_k(use: Use) -> list[Any]:
    x = use.tensor()
    axis, count = norm_axis(use.attribute("axis", -1), x.rank), use.setting("k", 1)
    (count,) = np.atleast_1d(count).tolist()
    found = _read_top(use, x, axis, count, bool(use.attribute("largest", 1)))
    layer = layers.Gather(use.name(), x.place(axis))
    return [x.like(use.draw(layer, x, found)), found]


PICKING = (
    LayerCodec(
        layers.Gather,
        onnx=_write_gather,
        operators={
            "Gather": _read_gather, "GatherElements": _read_gather_elements,
            "GatherND": _read_by_numbers(_read_take_slices),
            "ScatterElements": _read_by_numbers(_read_put_elements),
            "ScatterND": _read_by_numbers(_read_put_slices),
            "Scatter": _read_by_numbers(_read_put_elements),
            "Compress": _read_by_numbers(_read_compressed),
        },
    ),
    LayerCodec(
        layers.TopIndices,
        onnx=_write_top_indices,
        operators={
            "ArgMax": _read_extreme(True), "ArgMin": _read_extreme(False), "TopK": _read_top_k
        },
    ),
)  # fmt: skip


def _write_reduce(g: WrittenGraph, layer: layers.Reduce, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    mode = "LogSumExp" if layer.mode == "logsumexp" else layer.mode.capitalize()
    if len(xs) == 1:
        return g.reduce(mode, xs[0], layer._over(len(shapes) + 1), layer.keepdims)
    rank = len(shapes[0]) + 1
    axes, x = layer._over(rank), xs[0]
    there = g.cast(xs[1], bool)
    there = g.unsqueeze(there, *range(2, rank)) if rank > 2 else there
    neutral = {"Max": -inf, "Min": inf, "LogSumExp": -inf}.get(mode, 0.0)
    x = g.node("Where", there, x, g.constant(neutral, "neutral"), dtype=g.dtype)
    y = g.reduce("Sum" if mode == "Mean" else mode, x, axes)
    number = g.node("Expand", g.cast(there, g.dtype), g.node("Shape", x, dtype=np.int64))
    number = g.reduce("Sum", number, axes)
    if mode == "Mean":
        y = g.node("Div", y, g.node("Max", number, g.constant(1.0, "one")))
    elif mode != "Sum":
        some = g.node("Greater", number, g.constant(0.0, "none"), dtype=bool)
        y = g.node("Where", some, y, g.constant(0.0, "empty"), dtype=g.dtype)
    return y if layer.keepdims else g.squeeze(y, *axes)


Step = Callable[[Use, Tensor], Tensor]


def _read_operation(mode: str) -> Step:
    return lambda use, x: use.make(layers.Operation, x, mode=mode)


def _read_square(use: Use, x: Tensor) -> Tensor:
    return use.make(layers.Power, x, exponent=2.0)


def reduced(use: Use, x: Tensor, mode: str, axes: list[int], keep: bool) -> Tensor:
    """Reduce ``x`` along ``axes`` of the graph."""
    places = sorted({x.place(axis) for axis in axes})
    if not places:
        return x
    pooled = {"mean": layers.GlobalAvgPooling2D, "max": layers.GlobalMaxPooling2D}.get(mode)
    if pooled is not None and places == [2, 3] and len(x.sample) == 3 and x.axis == 0:
        flat = use.draw(pooled(use.name()), x)
        whole = x.like(flat)
        return x.like(use.reshaped(whole, (*flat.shape, 1, 1))) if keep else whole
    y = use.make(layers.Reduce, x, mode=mode, axis=places, keepdims=True)
    if keep:
        return y
    return without(use, y, [norm_axis(axis, x.rank) for axis in axes])


def _read_axes(use: Use, x: Tensor) -> list[int] | None:
    given = use.setting("axes", 1)
    if given:
        return [norm_axis(k, x.rank) for k in np.atleast_1d(given).tolist()]
    return None if use.attribute("noop_with_empty_axes", 0) else list(range(x.rank))


def _read_reduction(mode: str, before: Step | None = None, after: Step | None = None) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        axes = _read_axes(use, x)
        y = x if before is None else before(use, x)
        if axes is not None:
            y = reduced(use, y, mode, axes, bool(use.attribute("keepdims", 1)))
        return y if after is None else after(use, y)

    return convert


def _read_global(mode: str) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        return reduced(use, x, mode, list(range(2, x.rank)), keep=True)

    return convert


def _read_global_lp(use: Use) -> Tensor:
    x = use.tensor()
    sums = lambda x: reduced(use, x, "sum", list(range(2, x.rank)), keep=True)  # noqa: E731
    return lp_norm(use, x, use.attribute("p", 2), sums)


def lp_norm(use: Use, x: Tensor, p: float, sums: Callable[[Tensor], Tensor]) -> Tensor:
    """Return (Σ |x|ᵖ)^(1/p), with the sums that ``sums`` computes."""
    if not p > 0:
        raise RefusedError("p above 0", f"{p}")
    if p == 2:
        return _ROOT(use, sums(_read_square(use, x)))
    y = _ABS(use, x)
    if p == 1:
        return sums(y)
    y = sums(use.make(layers.Power, y, exponent=float(p)))
    return use.make(layers.Power, y, exponent=1.0 / p)


def _read_mean_variance(use: Use) -> Tensor:
    x = use.tensor()
    axes = list(use.attribute("axes", [0, 2, 3]))
    centred = use.make(layers.Subtract, x, reduced(use, x, "mean", axes, keep=True))
    spread = reduced(use, _read_square(use, centred), "mean", axes, keep=True)
    root = use.make(layers.Operation, scaled(use, spread, 1.0, 1e-9), mode="sqrt")
    return use.make(layers.Divide, centred, root)


def _read_lp_normalization(use: Use) -> Tensor:
    x, axes = use.tensor(), [use.attribute("axis", -1)]
    if use.attribute("p", 2) == 2:
        total = reduced(use, _read_square(use, x), "sum", axes, keep=True)
        norm = use.make(layers.Operation, total, mode="sqrt")
    else:
        positive = use.make(layers.Operation, x, mode="abs")
        norm = reduced(use, positive, "sum", axes, keep=True)
    # A zero vector stays zero.
    return use.make(layers.Divide, x, use.make(layers.Clip, norm, low=1e-12))


_ROOT, _LOG, _ABS = _read_operation("sqrt"), _read_operation("log"), _read_operation("abs")


REDUCING = (
    LayerCodec(
        layers.Reduce,
        onnx=_write_reduce,
        operators={
            "ReduceSum": _read_reduction("sum"), "ReduceMean": _read_reduction("mean"),
            "ReduceMax": _read_reduction("max"), "ReduceMin": _read_reduction("min"),
            "ReduceL1": _read_reduction("sum", _ABS),
            "ReduceL2": _read_reduction("sum", _read_square, _ROOT),
            "ReduceSumSquare": _read_reduction("sum", _read_square),
            "ReduceLogSum": _read_reduction("sum", None, _LOG),
            "ReduceLogSumExp": _read_reduction("logsumexp"),
            "GlobalAveragePool": _read_global("mean"), "GlobalMaxPool": _read_global("max"),
            "GlobalLpPool": _read_global_lp,
            "MeanVarianceNormalization": _read_mean_variance,
            "LpNormalization": _read_lp_normalization,
        },
    ),
)  # fmt: skip
