"""Multiply-adds of layers.

They count matrix products and convolutions, padding included, as published figures do; biases,
comparisons and elementwise functions are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from singanet.base.elsewhere import is_library
from singanet.layers.activations import GatedUnit
from singanet.layers.convolution import (
    Convolution,
    DepthwiseConvolution,
    SeparableConvolution,
    TransposedConvolution,
)
from singanet.layers.dense import Dense
from singanet.layers.elementwise import MatMul
from singanet.layers.experts import MixtureOfExperts
from singanet.layers.joins import Dot
from singanet.layers.layer import Layer
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.layers.rnn import RNN, TimeDistributed
from singanet.types import Shape

Count = Callable[[Any, list[Shape], list[Shape]], int | None]


def multiply_adds(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int | None:
    """Return the multiply-adds of ``layer`` for a sample, or None if they are unknown.

    A class outside singanet may define ``multiply_adds(in_shapes, out_shapes)``. Without it, or if
    an axis is -1, the count is None.

    Args:
        layer: A layer with parameters.
        in_shapes: The shapes of its inputs, without the batch axis.
        out_shapes: The shapes of its outputs, without the batch axis.
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
    """Count one row of the weight per output."""
    return prod(out_shapes[0]) * layer.params["weight"].shape[1]


def _separable(layer: SeparableConvolution, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count the rows of both weights per position of an output."""
    weights = (layer.params["depthwise_weight"], layer.params["pointwise_weight"])
    return prod(out_shapes[0]) // layer.filters * sum(prod(weight.shape) for weight in weights)


def _by_input(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count one row of the weight per input."""
    return prod(in_shapes[0]) * layer.params["weight"].shape[1]


def _matmul(layer: MatMul, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    inner = in_shapes[0][-2 if layer.transpose_a else -1]
    return prod(out_shapes[0]) * inner


def _dot(layer: Dot, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    return prod(in_shapes[0])


def _recurrent(layer: RNN, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count every matrix in every step."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return in_shapes[0][0] * sum(map(prod, matrices))


def _attention(layer: MultiHeadAttention, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count projections, then scores and means for each query, key and head; masks save nothing."""
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
    """Count each row times every matrix, low-rank pairs included."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return prod(in_shapes[0][:-1]) * sum(map(prod, matrices))


def _by_chosen(layer: MixtureOfExperts, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count each row times the router and the matrices of the experts that it chooses."""
    *steps, size = in_shapes[0]
    return prod(steps) * size * (layer.num_experts + 3 * layer.units * layer.top_k)


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
    MixtureOfExperts: _by_chosen,
    MultiHeadAttention: _attention,
    RNN: _recurrent,
    SeparableConvolution: _separable,
    TimeDistributed: _each_step,
    TransposedConvolution: _by_input,
}
