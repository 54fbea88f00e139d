"""Normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.group_norm import GroupNorm, InstanceNorm
from singanet.layers.l2_norm import L2Norm
from singanet.layers.layer import Layer
from singanet.layers.layer_norm import LayerNorm, RMSNorm
from singanet.onnx.forms.element_wise import scaled
from singanet.onnx.forms.graph import Form, Value, WrittenGraph


def _batch_norm(g: WrittenGraph, layer: BatchNormalization, xs: list[Value]) -> Value:
    count = layer.params["mean"].shape
    params = [
        g.param(layer, suffix) if suffix in layer.params else g.constant(np.full(count, k), suffix)
        for suffix, k in (("gamma", 1.0), ("beta", 0.0), ("mean", 0.0), ("var", 1.0))
    ]
    # There the weight of the old value.
    numbers = {"epsilon": layer.epsilon, "momentum": 1.0 - layer.momentum}
    shape: Any = layer.in_shapes
    last = len(shape)
    if layer.axis == 1 or last == 1:
        return g.node("BatchNormalization", xs[0], *params, **numbers)
    x = g.transpose(xs[0], 0, last, *range(1, last))
    y = g.node("BatchNormalization", x, *params, **numbers)
    return g.transpose(y, 0, *range(2, last + 1), 1)


def _layer_norm(g: WrittenGraph, layer: LayerNorm, xs: list[Value]) -> Value:
    inputs = [xs[0], _gamma(g, layer)]
    if layer.center:
        inputs.append(g.param(layer, "beta"))
    return g.node("LayerNormalization", *inputs, axis=layer.axis, epsilon=layer.epsilon)


def _gamma(g: WrittenGraph, layer: LayerNorm) -> Value:
    shape: Any = layer.in_shapes
    normalised = shape[layer._first(len(shape) + 1) - 1 :]
    return g.param(layer, "gamma") if layer.scale else g.constant(np.ones(normalised), "ones")


def _rms_norm(g: WrittenGraph, layer: RMSNorm, xs: list[Value]) -> Value:
    if g.opset >= 23:
        gamma = _gamma(g, layer)
        return g.node("RMSNormalization", xs[0], gamma, axis=layer.axis, epsilon=layer.epsilon)
    shape: Any = layer.in_shapes
    rank = len(shape) + 1
    x = xs[0]
    mean = g.reduce("Mean", g.node("Mul", x, x), list(range(layer._first(rank), rank)))
    root = g.node("Sqrt", g.node("Add", mean, g.constant(layer.epsilon, "epsilon")))
    y = g.node("Div", x, root)
    return g.node("Mul", y, g.param(layer, "gamma")) if layer.affine else y


def _group_norm(g: WrittenGraph, layer: GroupNorm, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    channels, groups = shape[0], layer.groups_of(shape[0])
    if groups == channels:
        return _instance_norm(g, layer, xs)
    if g.opset >= 21 and len(shape) > 1:
        return g.node(
            "GroupNormalization", xs[0], *_both(g, layer), num_groups=groups, epsilon=layer.epsilon
        )
    x = g.reshape(xs[0], (0, groups, -1))
    ones, zeros = (g.constant(np.full(groups, k), what) for k, what in ((1, "ones"), (0, "zeros")))
    y = g.node("InstanceNormalization", x, ones, zeros, epsilon=layer.epsilon)
    return scaled(g, layer, g.reshape(y, (0, *shape)))


def _instance_norm(g: WrittenGraph, layer: GroupNorm, xs: list[Value]) -> Value:
    return g.node("InstanceNormalization", xs[0], *_both(g, layer), epsilon=layer.epsilon)


def _both(g: WrittenGraph, layer: GroupNorm) -> list[Value]:
    """Factor and offset of each channel."""
    channels = (layer.in_shapes or ())[0]
    return [
        g.param(layer, suffix) if suffix in layer.params else g.constant(np.full(channels, k), what)
        for suffix, what, k in (("gamma", "ones", 1.0), ("beta", "zeros", 0.0))
    ]


def _l2_norm(g: WrittenGraph, layer: L2Norm, xs: list[Value]) -> Value:
    squares = g.reduce("Sum", g.node("Mul", xs[0], xs[0]), [-1])
    length = g.node("Sqrt", g.node("Add", squares, g.constant(layer.epsilon, "epsilon")))
    return g.node("Div", xs[0], length)


NORMS: Mapping[type[Layer], Form] = {
    BatchNormalization: _batch_norm,
    GroupNorm: _group_norm,
    InstanceNorm: _instance_norm,
    L2Norm: _l2_norm,
    LayerNorm: _layer_norm,
    RMSNorm: _rms_norm,
}
