"""Convolutions, pools and other layers of images, and of sequences as they."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.layer import Layer
from singanet.onnx.forms.graph import Form, Value, WrittenGraph
from singanet.ops.window import Pads, Window
from singanet.program.prediction.folding import FoldedConvolution


def _window(layer: Any, pads: Pads) -> dict[str, Any]:
    window: Window = layer.window
    begins, ends = zip(*pads, strict=True)
    made = {
        "kernel_shape": [*window.kernel],
        "strides": [*window.stride],
        "pads": [*begins, *ends],
    }
    return {**made, "dilations": [*window.dilation]} if max(window.dilation) > 1 else made


def _bordered(
    g: WrittenGraph, x: Value, pads: Pads, mode: str = "constant", value: float = 0.0
) -> Value:
    """``x`` (N, C, ...) with the border as an array of its own."""
    return g.pad(x, [(0, 0), (0, 0), *pads], mode, value)


def _with_channels(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """Sequences (N, L) as those of one channel."""
    return g.unsqueeze(x, 1) if _is_flat(layer) else x


def _is_flat(layer: Any) -> bool:
    return len(layer.in_shapes) == len(layer.window.kernel)


def _conv(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    return _convolved(g, layer, xs[0], "weight", *bias)


def _convolved(g: WrittenGraph, layer: Any, x: Value, suffix: str, *bias: Value) -> Value:
    """``x`` under the layer's window, with the parameter ``suffix`` for kernels."""
    window: Window = layer.window
    x, pads = _with_channels(g, layer, x), window.pads
    mode = getattr(layer, "padding_mode", "zeros")
    if mode != "zeros":
        x, pads = _bordered(g, x, pads, mode), ((0, 0),) * len(pads)
    attributes = _window(layer, pads)
    shape: Any = layer.in_shapes
    channels = 1 if _is_flat(layer) else shape[0]
    count, rest = layer.params[suffix].shape
    per_group = rest // prod(window.kernel)
    weight = g.param(layer, suffix, (count, per_group, *attributes["kernel_shape"]))
    return g.node("Conv", x, weight, *bias, group=channels // per_group, **attributes)


def _separable_conv(g: WrittenGraph, layer: layers.SeparableConv2D, xs: list[Value]) -> Value:
    inner = _convolved(g, layer, xs[0], "depthwise_weight")
    shape = (*layer.params["pointwise_weight"].shape, *(1,) * len(layer.window.kernel))
    bias = [g.param(layer, "bias")] if layer.use_bias else []
    return g.node("Conv", inner, g.param(layer, "pointwise_weight", shape), *bias)


def _conv_transpose(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    attributes = _window(layer, layer.window.pads)
    channels = layer.params["weight"].shape[0]
    shape = (channels, layer.nb_kernels // layer.groups, *attributes["kernel_shape"])
    weight = g.param(layer, "weight", shape)
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    attributes["output_padding"] = [*layer.output_padding]
    x = _with_channels(g, layer, xs[0])
    return g.node("ConvTranspose", x, weight, *bias, group=layer.groups, **attributes)


def _max_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    window: Window = layer.window
    x, pads = _with_channels(g, layer, xs[0]), _reach(layer)
    if any(max(ends) >= size for ends, size in zip(pads, window.kernel, strict=True)):
        # A border that wide, as dilation allows, runtimes refuse.
        x = _bordered(g, x, pads, value=-inf)
        pads = ((0, 0),) * len(pads)
    y = g.node("MaxPool", x, **_window(layer, pads))
    return g.squeeze(y, 1) if _is_flat(layer) else y


def _average_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    x, pads, counted = _with_channels(g, layer, xs[0]), _reach(layer), layer.count_include_pad
    if counted and pads != layer.window.pads:
        # Of windows beyond the border the border alone counts.
        x = _bordered(g, x, layer.window.pads)
        beyond = zip(pads, layer.window.pads, strict=True)
        pads = tuple((0, end - given) for (_, end), (_, given) in beyond)
        counted = False
    y = g.node("AveragePool", x, count_include_pad=int(counted), **_window(layer, pads))
    return g.squeeze(y, 1) if _is_flat(layer) else y


def _reach(layer: Any) -> Pads:
    """The pads with which sizes that are rounded down are those of the layer."""
    window: Window = layer.window
    return window.reach(*layer.in_shapes[-len(window.kernel) :])


def _global_pool(op: str) -> Form:
    def put(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
        y = g.node(op, xs[0])
        return y if layer.keepdims else g.node("Flatten", y, axis=1)

    return put


def _adaptive_windows(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """(N, C, positions of the output, positions of each)."""
    flat = g.reshape(x, (0, layer.in_shapes[0], -1))
    places = g.constant(layer.found()[0], "places", np.int64)
    return g.node("Gather", flat, places, axis=2)


def _adaptive_mean(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    shares = g.constant(layer.found()[1], "shares")
    y = g.node("Mul", _adaptive_windows(g, layer, xs[0]), shares)
    return g.reshape(g.reduce("Sum", y, [3], keepdims=False), (0, *layer.out_shapes))


def _adaptive_max(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    y = g.reduce("Max", _adaptive_windows(g, layer, xs[0]), [3], keepdims=False)
    return g.reshape(y, (0, *layer.out_shapes))


def _lrn(g: WrittenGraph, layer: layers.LRN, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    # Runtimes know images alone; the window lies over the channels.
    x = xs[0] if len(shape) == 3 else g.reshape(xs[0], (0, shape[0], -1, 1))
    y = g.node(
        "LRN", x, size=layer.size, alpha=layer.alpha * layer.size, beta=layer.beta, bias=layer.k
    )
    return y if len(shape) == 3 else g.reshape(y, (0, *shape))


def _upsampling(g: WrittenGraph, layer: layers.Upsampling2D, xs: list[Value]) -> Value:
    scales = g.constant([1.0, 1.0, *layer.factors], "scales", "float32")
    nearest = layer.mode == "nearest"
    if nearest:
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        modes = {"coordinate_transformation_mode": "half_pixel"}
    return g.node("Resize", xs[0], None, scales, mode="nearest" if nearest else "linear", **modes)


def _pools(kind: str, form: Form) -> dict[type[Layer], Form]:
    return {getattr(layers, f"{kind}Pooling{axes}D"): form for axes in (1, 2, 3)}


SPATIAL: Mapping[type[Layer], Form] = {
    FoldedConvolution: _conv,
    layers.LRN: _lrn,
    layers.Upsampling2D: _upsampling,
    **dict.fromkeys((layers.Conv1D, layers.Conv2D, layers.Conv3D), _conv),
    **dict.fromkeys((layers.DepthwiseConv1D, layers.DepthwiseConv2D), _conv),
    **dict.fromkeys((layers.SeparableConv1D, layers.SeparableConv2D), _separable_conv),
    **dict.fromkeys(
        (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose), _conv_transpose
    ),
    **_pools("Max", _max_pool),
    **_pools("Avg", _average_pool),
    **_pools("GlobalMax", _global_pool("GlobalMaxPool")),
    **_pools("GlobalAvg", _global_pool("GlobalAveragePool")),
    **_pools("AdaptiveMax", _adaptive_max),
    **_pools("AdaptiveAvg", _adaptive_mean),
}
