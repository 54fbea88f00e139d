"""Tables of vectors, and which steps are there."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.arrays import StoredArray, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.dense import QUANTIZED
from singanet.codecs.onnx import Value, WrittenGraph
from singanet.layers.layer import Layer
from singanet.types import Array


def _write_embedding(g: WrittenGraph, layer: layers.Embedding, xs: list[Value]) -> Value:
    # Of whole numbers Gather knows two types.
    index = xs[0] if xs[0].dtype in ("int32", "int64") else g.cast(xs[0], np.int64)
    return g.node("Gather", g.param(layer, "weight"), index)


def _write_position_embedding(
    g: WrittenGraph, layer: layers.PositionEmbedding, xs: list[Value]
) -> Value:
    weight = g.param(layer, "weight")
    longest, steps = layer.params["weight"].shape[0], _write_steps(layer)
    if steps == -1:
        first, axes = g.ints([0], "first"), g.ints([0], "axes")
        weight = g.node("Slice", weight, first, g.extent(xs[0], 1), axes)
    elif steps < longest:
        weight = g.slice(weight, [0], [0], [steps])
    return g.node("Add", xs[0], weight)


def _write_class_token(g: WrittenGraph, layer: layers.ClassToken, xs: list[Value]) -> Value:
    return g.node("Concat", g.of_every_sample(xs[0], layer, "weight"), xs[0], axis=1)


def _write_steps(layer: Layer) -> int:
    shape: Any = layer.in_shapes
    return int(shape[0])


def _write_sinusoidal_position(
    g: WrittenGraph, layer: layers.SinusoidalPosition, xs: list[Value]
) -> Value:
    shape: Any = layer.in_shapes
    steps, size = shape
    places = np.arange(size)
    rate = 10000.0 ** (-2.0 * (places // 2) / size)
    # The cosine is the sine a quarter further on.
    phase = np.where(places % 2, np.pi / 2, 0.0)
    if steps != -1:
        angle = np.arange(steps)[:, None] * rate + phase
        return g.node("Add", xs[0], g.constant(np.sin(angle), "positions"))
    return g.node("Add", xs[0], waves(g, xs[0], rate, phase))


def waves(g: WrittenGraph, x: Value, rate: Array, phase: Any) -> Value:
    """sin(t rate + phase) at each step t of ``x``, (T, rates): by doubles, as angles are large."""
    rates, phases = (g.constant(a, w, "float64") for a, w in ((rate, "rate"), (phase, "phase")))
    step = g.unsqueeze(g.cast(g.count(x, 1), np.float64), 1)
    angles = g.node("Add", g.node("Mul", step, rates), phases)
    return g.cast(g.node("Sin", angles), g.dtype)


def _write_positions(g: WrittenGraph, layer: layers.Positions, xs: list[Value]) -> Value:
    pad = g.constant(layer.padding_index, "padding", np.int64)
    fills = g.node("Equal", g.cast(xs[0], np.int64), pad, dtype=bool)
    there = g.cast(g.node("Not", fills), np.int64)
    counted = g.node("CumSum", there, g.constant(1, "axis", np.int64))
    return g.node("Add", g.node("Mul", counted, there), pad)


def _write_weight(g: WrittenGraph, layer: layers.Weight, xs: list[Value]) -> Value:
    return g.of_every_sample(xs[0], layer, "weight")


SEQUENCES = (
    LayerCodec(
        layers.Embedding,
        stored(StoredArray("weight", "embeddings", "weight")),
        KerasClass(
            {"input_dim": ("vocabulary_size", None), "output_dim": ("num_output", None)},
            {"W_specs": ("embeddings", {(0,): 0, (1,): 1})},
            QUANTIZED,
            lambda d: {"mask_index": 0 if d.config.get("mask_zero") else None},
            masked=True,
        ),
        onnx=_write_embedding,
    ),
    LayerCodec(layers.ClassToken, onnx=_write_class_token),
    LayerCodec(layers.PositionEmbedding, onnx=_write_position_embedding),
    LayerCodec(layers.Positions, onnx=_write_positions),
    LayerCodec(layers.SinusoidalPosition, onnx=_write_sinusoidal_position),
    LayerCodec(layers.Weight, onnx=_write_weight),
)
