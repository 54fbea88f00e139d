"""Elements moved about, joined, cut and summed up."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from singanet.layers.arithmetic import Index
from singanet.layers.concat import Concat
from singanet.layers.gather import Gather
from singanet.layers.layer import Layer
from singanet.layers.matmul import MatMul
from singanet.layers.pad import Cropping, EndPadding, Pad
from singanet.layers.reduce import Expand, Reduce, RepeatVector
from singanet.layers.reshape import Flatten, Permute, Reshape
from singanet.layers.slice import Slice
from singanet.layers.top_indices import TopIndices
from singanet.layers.weight import Weight
from singanet.onnx.forms.graph import FAR, Form, Value, WrittenGraph


def _reshape(g: WrittenGraph, layer: Reshape, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.reshape(xs[0], (0, *shape))


def _flatten(g: WrittenGraph, layer: Flatten, xs: list[Value]) -> Value:
    y = g.node("Flatten", xs[0], axis=layer.axis)
    if layer.axis > 1:
        y.rows = f"{g.scope}_rows"
    return y


def _permute(g: WrittenGraph, layer: Permute, xs: list[Value]) -> Value:
    return g.transpose(xs[0], 0, *layer.axes)


def _concat(g: WrittenGraph, layer: Concat, xs: list[Value]) -> Value:
    y = g.node("Concat", *xs, axis=layer.axis)
    if layer.axis == 0:
        y.rows = f"{g.scope}_rows"
    return y


def _slice(g: WrittenGraph, layer: Slice, xs: list[Value]) -> list[Value]:
    shape: Any = layer.in_shapes
    bounds = [0, *layer.slice_point, shape[layer.axis - 1]]
    sizes = [end - first for first, end in pairwise(bounds)]
    return g.nodes_of("Split", len(sizes), xs[0], g.ints(sizes, "sizes"), axis=layer.axis)


def _index(g: WrittenGraph, layer: Index, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    ranges, gone = [], []
    for k, (place, size) in enumerate(zip(layer.index, shape, strict=False), 1):
        if isinstance(place, int):
            at = place if size == -1 else place % size
            ranges.append((k, at, -(FAR + 1) if at == -1 else at + 1, 1))
            gone.append(k)
        elif size == -1 and place[2] == -1:
            ranges.append((k, -1, FAR, -1))
        elif size != -1 and place != (None, None, None):
            start, stop, step = slice(*place).indices(size)
            ranges.append((k, start, FAR if stop < 0 else stop, step))
    y = xs[0]
    if ranges:
        y = g.slice(y, *map(list, zip(*ranges, strict=True)))
    return g.squeeze(y, *gone) if gone else y


def _pad(g: WrittenGraph, layer: Pad, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    return g.pad(xs[0], [(0, 0), *layer._by_axis(len(shape))], layer.mode, layer.value)


def _gather(g: WrittenGraph, layer: Gather, xs: list[Value]) -> Value:
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


def _top_indices(g: WrittenGraph, layer: TopIndices, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    axis = layer._at(len(shape) + 1)
    if layer.k == 1:
        return g.node("ArgMax" if layer.largest else "ArgMin", xs[0], axis=axis, dtype=np.int64)
    sides = (xs[0], g.ints([layer.k], "k"))
    _, found = g.nodes_of("TopK", 2, *sides, axis=axis, largest=int(layer.largest))
    found.dtype = np.dtype(np.int64)
    return found


def _cropping(g: WrittenGraph, layer: Cropping, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    inside = [
        (axis, before, size - after)
        for axis, ((before, after), size) in enumerate(
            zip(layer._pad._by_axis(len(shape)), shape, strict=True), 1
        )
        if before or after
    ]
    return g.slice(xs[0], *map(list, zip(*inside, strict=True))) if inside else xs[0]


def _reduce(g: WrittenGraph, layer: Reduce, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    mode = layer.mode.capitalize()
    if len(xs) == 1:
        return g.reduce(mode, xs[0], layer._over(len(shapes) + 1), layer.keepdims)
    rank = len(shapes[0]) + 1
    axes, x = layer._over(rank), xs[0]
    there = g.cast(xs[1], bool)
    there = g.unsqueeze(there, *range(2, rank)) if rank > 2 else there
    neutral = {"Max": -inf, "Min": inf}.get(mode, 0.0)
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


def _expand(g: WrittenGraph, layer: Expand, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.node("Expand", xs[0], g.ints([1, *shape], "shape"))


def _repeat(g: WrittenGraph, layer: RepeatVector, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    return g.node("Expand", g.unsqueeze(xs[0], 1), g.ints([1, *shape], "shape"))


def _weight(g: WrittenGraph, layer: Weight, xs: list[Value]) -> Value:
    return g.of_every_sample(xs[0], layer, "weight")


def _matmul(g: WrittenGraph, layer: MatMul, xs: list[Value]) -> Value:
    shapes: Any = layer.in_shapes
    rank = len(shapes[0]) + 1
    order = (*range(rank - 2), rank - 1, rank - 2)
    turns = (layer.transpose_a, layer.transpose_b)
    factors = [g.transpose(x, *order) if turn else x for x, turn in zip(xs, turns, strict=True)]
    return g.node("MatMul", *factors)


SHAPES: Mapping[type[Layer], Form] = {
    Concat: _concat,
    Cropping: _cropping,
    EndPadding: _pad,
    Expand: _expand,
    Flatten: _flatten,
    Gather: _gather,
    Index: _index,
    MatMul: _matmul,
    Pad: _pad,
    Permute: _permute,
    Reduce: _reduce,
    RepeatVector: _repeat,
    Reshape: _reshape,
    TopIndices: _top_indices,
    Slice: _slice,
    Weight: _weight,
}
