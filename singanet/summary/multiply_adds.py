"""Multiply-adds of a layer's forward pass for one sample.

Counted are those of matrix products and convolutions, padding included, as published figures do;
biases, comparisons and element-wise functions are not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from singanet.base.origin import is_library
from singanet.layers import (
    RNN,
    Dense,
    Dot,
    GatedUnit,
    Layer,
    MatMul,
    MultiHeadAttention,
    TimeDistributed,
)
from singanet.layers.conv import Convolution
from singanet.layers.conv_transpose import TransposedConvolution
from singanet.layers.depthwise_conv import DepthwiseConvolution
from singanet.layers.separable_conv import SeparableConvolution
from singanet.types import Shape

Count = Callable[[Any, list[Shape], list[Shape]], int | None]


def multiply_adds(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int | None:
    """The count for sample shapes that are known along every axis.

    A class outside singanet answers with its own method ``multiply_adds(in_shapes, out_shapes)``;
    without one the count is None, unknown, as it is where an axis is -1.
    """
    if any(axis < 0 for shape in (*in_shapes, *out_shapes) for axis in shape):
        return None
    own = getattr(layer, "multiply_adds", None)
    if callable(own):
        return int(own(in_shapes, out_shapes))
    for kind in type(layer).__mro__:
        if kind in _COUNTS:
            return _COUNTS[kind](layer, in_shapes, out_shapes)
    return 0 if is_library(type(layer)) else None


def _by_output(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each output is a product with one row of the weight."""
    return prod(out_shapes[0]) * layer.params["weight"].shape[1]


def _separable(layer: SeparableConvolution, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each position of an output by the rows of both weights."""
    weights = (layer.params["depthwise_weight"], layer.params["pointwise_weight"])
    return prod(out_shapes[0][1:]) * sum(prod(weight.shape) for weight in weights)


def _by_input(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each input is spread by one row of the weight."""
    return prod(in_shapes[0]) * layer.params["weight"].shape[1]


def _matmul(layer: MatMul, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    inner = in_shapes[0][-2 if layer.transpose_a else -1]
    return prod(out_shapes[0]) * inner


def _dot(layer: Dot, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    return prod(in_shapes[0])


def _recurrent(layer: RNN, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Every step multiplies by every matrix."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return in_shapes[0][0] * sum(map(prod, matrices))


def _attention(layer: MultiHeadAttention, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Projections, then scores and means for each query, key and head; a causal mask saves none."""
    queries, keys = in_shapes[0][0], in_shapes[layer.given - 1][0]
    rows = {"query": queries, "value": keys, "key": keys, "output": queries}
    projections = sum(
        n * prod(param.shape)
        for part, n in rows.items()
        for suffix, param in layer.params.items()
        if suffix.startswith(f"{part}_weight")
    )
    per_pair = layer.num_heads * (layer.dims["key"] + layer.dims["value"])
    return projections + queries * keys * per_pair


def _by_rows(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each row by every matrix, those of low-rank pairs among them."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return prod(in_shapes[0][:-1]) * sum(map(prod, matrices))


def _each_step(
    layer: TimeDistributed, in_shapes: list[Shape], out_shapes: list[Shape]
) -> int | None:
    once = multiply_adds(layer.layer, [in_shapes[0][1:]], [out_shapes[0][1:]])
    return None if once is None else in_shapes[0][0] * once


_COUNTS: dict[type, Count] = {
    Convolution: _by_output,
    Dense: _by_rows,
    DepthwiseConvolution: _by_output,
    Dot: _dot,
    GatedUnit: _by_rows,
    MatMul: _matmul,
    MultiHeadAttention: _attention,
    RNN: _recurrent,
    SeparableConvolution: _separable,
    TimeDistributed: _each_step,
    TransposedConvolution: _by_input,
}
