"""Tables, positions and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.layers.class_token import ClassToken
from singanet.layers.dense import Dense
from singanet.layers.embedding import Embedding
from singanet.layers.layer import Layer
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.layers.positions import PositionEmbedding, SinusoidalPosition
from singanet.onnx.forms.graph import Form, Value, WrittenGraph
from singanet.types import Array


def _dense(g: WrittenGraph, layer: Dense, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    if len(shape) > 1:
        return dense_of_steps(g, layer, xs[0])
    bias = g.optional(layer, "bias")
    inputs = [xs[0], g.param(layer, "weight"), *([] if bias is None else [bias])]
    return g.node("Gemm", *inputs, **({"transB": 1} if layer.W_transpose else {}))


def dense_of_steps(g: WrittenGraph, layer: Dense, x: Value) -> Value:
    """The layer along the last axis of (N, ..., in)."""
    weight = g.param(layer, "weight")
    if layer.W_transpose:
        weight = g.transpose(weight, 1, 0)
    return _product(g, x, weight, g.optional(layer, "bias"))


def _product(g: WrittenGraph, x: Value, weight: Value, bias: Value | None) -> Value:
    y = g.node("MatMul", x, weight)
    return y if bias is None else g.node("Add", y, bias)


def _embedding(g: WrittenGraph, layer: Embedding, xs: list[Value]) -> Value:
    # Of whole numbers Gather knows two types.
    index = xs[0] if xs[0].dtype in ("int32", "int64") else g.cast(xs[0], np.int64)
    return g.node("Gather", g.param(layer, "weight"), index)


def _position_embedding(g: WrittenGraph, layer: PositionEmbedding, xs: list[Value]) -> Value:
    weight = g.param(layer, "weight")
    longest, steps = layer.params["weight"].shape[0], _steps(layer)
    if steps == -1:
        first, axes = g.ints([0], "first"), g.ints([0], "axes")
        weight = g.node("Slice", weight, first, g.extent(xs[0], 1), axes)
    elif steps < longest:
        weight = g.slice(weight, [0], [0], [steps])
    return g.node("Add", xs[0], weight)


def _class_token(g: WrittenGraph, layer: ClassToken, xs: list[Value]) -> Value:
    return g.node("Concat", g.of_every_sample(xs[0], layer, "weight"), xs[0], axis=1)


def _steps(layer: Layer) -> int:
    shape: Any = layer.in_shapes
    return int(shape[0])


def _sinusoidal_position(g: WrittenGraph, layer: SinusoidalPosition, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    steps, size = shape
    places = np.arange(size)
    rate = 10000.0 ** (-2.0 * (places // 2) / size)
    # The cosine is the sine a quarter further on.
    phase = np.where(places % 2, np.pi / 2, 0.0)
    if steps != -1:
        angle = np.arange(steps)[:, None] * rate + phase
        return g.node("Add", xs[0], g.constant(np.sin(angle), "positions"))
    return g.node("Add", xs[0], _waves(g, xs[0], rate, phase))


def _waves(g: WrittenGraph, x: Value, rate: Array, phase: Any) -> Value:
    """sin(t rate + phase) at each step t of ``x``, (T, rates): by doubles, as angles are large."""
    rates, phases = (g.constant(a, w, "float64") for a, w in ((rate, "rate"), (phase, "phase")))
    step = g.unsqueeze(g.cast(g.count(x, 1), np.float64), 1)
    angles = g.node("Add", g.node("Mul", step, rates), phases)
    return g.cast(g.node("Sin", angles), g.dtype)


def _attention(g: WrittenGraph, layer: MultiHeadAttention, xs: list[Value]) -> Value | list[Value]:
    given = xs[: layer.given]
    query, value, key = (given + [given[-1]] * 2)[:3]
    q, v, k = (
        _heads(g, layer, part, x) for part, x in (("query", query), ("value", value), ("key", key))
    )
    scale = g.constant(layer.dims["key"] ** -0.5, "scale")
    scores = g.node("Mul", g.node("MatMul", q, k), scale)
    if layer.mask == "added":
        scores = g.node("Add", scores, g.cast(_mask(g, layer, xs[-1]), g.dtype))
        scores = g.node("Max", scores, _lowest(g))
    seen = [_causal(g, layer, query, key)] if layer.causal else []
    if layer.has_lengths:
        seen.append(_there(g, key, xs[layer.given]))
    if layer.mask == "boolean":
        seen.append(g.cast(_mask(g, layer, xs[-1]), bool))
    for each in seen:
        scores = g.node("Where", each, scores, _lowest(g), dtype=g.dtype)
    weights = g.node("Softmax", scores, axis=-1)
    if layer.has_lengths or layer.mask:
        # A query may see no key at all.
        any_seen = g.node("Greater", scores, _lowest(g), dtype=bool)
        weights = g.node("Where", any_seen, weights, g.constant(0.0, "none"), dtype=g.dtype)
    merged = g.transpose(g.node("MatMul", weights, v), 0, 2, 1, 3)
    width = layer.num_heads * layer.dims["value"]
    y = _projected(g, layer, "output", g.reshape(merged, (0, 0, width)))
    return [y, weights] if layer.return_weights else y


def _heads(g: WrittenGraph, layer: MultiHeadAttention, part: str, x: Value) -> Value:
    """(N, heads, T, size) of queries and values, (N, heads, size, T) of keys."""
    size, groups = layer.dims[part], layer.num_kv_heads or layer.num_heads
    count = layer.num_heads if part == "query" else groups
    rows = g.reshape(_projected(g, layer, part, x), (0, 0, count, size))
    if part == "value" or layer.rotary is None:
        heads = g.transpose(rows, *((0, 2, 3, 1) if part == "key" else (0, 2, 1, 3)))
    else:
        heads = _turned(g, layer, g.transpose(rows, 0, 2, 1, 3), x)
        heads = g.transpose(heads, 0, 1, 3, 2) if part == "key" else heads
    if count == layer.num_heads:
        return heads
    # Those of keys and values serve several of queries, which stand side by side.
    several = g.ints([1, 1, layer.num_heads // count, 1, 1], "each")
    spread = g.node("Expand", g.unsqueeze(heads, 2), several)
    rest = (size, -1) if part == "key" else (-1, size)
    return g.reshape(spread, (0, layer.num_heads, *rest))


def _turned(g: WrittenGraph, layer: MultiHeadAttention, heads: Value, x: Value) -> Value:
    """Heads (N, heads, T, size) turned by their positions in ``x``."""
    rotary, half = layer.rotary, layer.dims["key"] // 2
    assert rotary is not None
    speed = rotary.theta ** (-np.arange(half) / half)
    cos, sin = (_waves(g, x, speed, phase) for phase in (np.pi / 2, 0.0))
    if rotary.interleaved:
        heads = g.transpose(g.reshape(heads, (0, 0, 0, half, 2)), 0, 1, 2, 4, 3)
        heads = g.reshape(heads, (0, 0, 0, 2 * half))
    a, b = g.nodes_of("Split", 2, heads, g.ints([half, half], "halves"), axis=3)
    first = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    second = g.node("Add", g.node("Mul", b, cos), g.node("Mul", a, sin))
    # Scores are sums over pairs, whose order does not matter.
    return g.node("Concat", first, second, axis=3)


def _mask(g: WrittenGraph, layer: MultiHeadAttention, mask: Value) -> Value:
    """The mask with the axes samples, heads, queries and keys."""
    shapes: Any = layer.in_shapes
    missing = 3 - len(shapes[-1])
    return g.unsqueeze(mask, *range(1, 1 + missing)) if missing else mask


def _projected(g: WrittenGraph, layer: Layer, part: str, x: Value) -> Value:
    weight, bias = g.param(layer, f"{part}_weight"), g.optional(layer, f"{part}_bias")
    return _product(g, x, weight, bias)


def _lowest(g: WrittenGraph) -> Value:
    """The score of what is not to be seen; infinite ones alone would have no softmax."""
    return g.constant(float(np.finfo(g.dtype).min), "lowest")


def _causal(g: WrittenGraph, layer: MultiHeadAttention, query: Value, key: Value) -> Value:
    """Which keys each query may see, (queries, keys)."""
    shapes: Any = layer.in_shapes if isinstance(layer.in_shapes, list) else [layer.in_shapes]
    queries, keys = shapes[0][0], shapes[layer.given - 1][0]
    if -1 not in (queries, keys):
        return g.constant(np.tri(queries, keys), "causal", bool)
    last = g.unsqueeze(g.count(query, 1), 1)
    return g.node("LessOrEqual", g.count(key, 1), last, dtype=bool)


def _there(g: WrittenGraph, key: Value, lengths: Value) -> Value:
    """Which keys each sample has, (N, 1, 1, keys)."""
    ends = g.cast(g.reshape(lengths, (-1, 1, 1, 1)), np.int64)
    return g.node("Less", g.count(key, 1), ends, dtype=bool)


SEQUENCES: Mapping[type[Layer], Form] = {
    ClassToken: _class_token,
    Dense: _dense,
    Embedding: _embedding,
    MultiHeadAttention: _attention,
    PositionEmbedding: _position_embedding,
    SinusoidalPosition: _sinusoidal_position,
}
