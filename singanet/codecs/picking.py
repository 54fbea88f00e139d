"""Elements at indices: those taken, those put, and the indices of the largest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.arithmetic import scaled
from singanet.codecs.codec import LayerCodec
from singanet.codecs.moving import part, without
from singanet.codecs.onnx import (
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
    # They spread over each other but along the axis.
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
        raise RefusedError("a constant table, or constant indices", "parts of the net as both")
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
    """Each sample's own elements."""
    data, indices = use.value(0), use.value(1)
    if not isinstance(data, Tensor) or not isinstance(indices, Tensor):
        raise RefusedError("inputs of the net as both", "a constant")
    place = data.place(norm_axis(use.attribute("axis", 0), data.rank))
    others = [
        sizes for k, sizes in enumerate(zip(data.sample, indices.sample, strict=True), 1)
        if k != place
    ]  # fmt: skip
    if (data.axis, data.folds) != (indices.axis, indices.folds) or any(a != b for a, b in others):
        raise RefusedError("indices of the samples' shape", f"{indices.sample}")
    if not indices.whole:
        indices = replace(indices, symbol=_read_integers(use, indices), whole=True)
    layer = layers.Gather(use.name(), place)
    return replace(data, symbol=use.draw(layer, data, indices))


def _read_integers(use: Use, x: Tensor) -> Any:
    name = use.sheet.names.take(f"{use.node.name.strip('/') or use.node.op.lower()}.indices")
    return layers.Cast(name, "int64")(x.symbol)


def _read_looked_up(use: Use, data: Known, indices: Any) -> Tensor:
    """Rows of a constant: an `Embedding`."""
    table, axis = data.array, norm_axis(use.attribute("axis", 0), data.array.ndim)
    if axis != 0 or table.dtype.kind != "f":
        raise RefusedError("rows of a table of floats", f"axis {axis} of {table.dtype}")
    rows = table.reshape(len(table), -1)
    layer = layers.Embedding(use.name(0), *rows.shape)
    if not indices.whole:
        indices = replace(indices, symbol=_read_integers(use, indices), whole=True)
    # A table of one column is what it is.
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
    """A converter of a node with constant indices: a trial on numbers gives one `Gather`."""

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
    """The indices of so many along an axis of the graph."""
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
