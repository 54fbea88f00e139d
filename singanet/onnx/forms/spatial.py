"""Convolutions, pools and other layers of images, and of sequences as they."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.layers.conv1d import Conv1D
from singanet.layers.conv2d import Conv2D
from singanet.layers.conv2d_transpose import Conv2DTranspose
from singanet.layers.depthwise_conv2d import DepthwiseConv2D
from singanet.layers.geometry import OneAxis
from singanet.layers.global_pooling import (
    GlobalAvgPooling1D,
    GlobalAvgPooling2D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
)
from singanet.layers.layer import Layer
from singanet.layers.lrn import LRN
from singanet.layers.pooling import AvgPooling1D, AvgPooling2D, MaxPooling1D, MaxPooling2D
from singanet.layers.upsampling2d import Upsampling2D
from singanet.onnx.forms.graph import Form, Graph, Value
from singanet.ops.window import Window
from singanet.program.prediction.folding import FoldedConvolution


def _window(layer: Any) -> dict[str, Any]:
    """The attributes of a window, along the axes that the layer's samples have."""
    window: Window = layer.window
    axes = (1,) if isinstance(layer, OneAxis) else (0, 1)
    begins, ends = zip(*window.pads, strict=True)
    return {
        "kernel_shape": [window.kernel[k] for k in axes],
        "strides": [window.stride[k] for k in axes],
        "pads": [begins[k] for k in axes] + [ends[k] for k in axes],
        **({"dilations": [window.dilation[k] for k in axes]} if window.dilation != (1, 1) else {}),
    }


def _with_channels(g: Graph, layer: Layer, x: Value) -> Value:
    """Sequences (N, L) as those of one channel."""
    return g.unsqueeze(x, 1) if _is_flat(layer) else x


def _is_flat(layer: Layer) -> bool:
    return isinstance(layer, OneAxis) and len(layer.in_shapes or ()) == 1


def _conv(g: Graph, layer: Any, xs: list[Value]) -> Value:
    attributes = _window(layer)
    taps = attributes["kernel_shape"]
    shape: Any = layer.in_shapes
    channels = 1 if _is_flat(layer) else shape[0]
    count, rest = layer.params["weight"].shape
    per_group = rest // (layer.window.kernel[0] * layer.window.kernel[1])
    weight = g.param(layer, "weight", (count, per_group, *taps))
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    x = _with_channels(g, layer, xs[0])
    return g.node("Conv", x, weight, *bias, group=channels // per_group, **attributes)


def _conv_transpose(g: Graph, layer: Conv2DTranspose, xs: list[Value]) -> Value:
    attributes = _window(layer)
    channels = layer.params["weight"].shape[0]
    shape = (channels, layer.nb_kernels // layer.groups, *attributes["kernel_shape"])
    inputs = [xs[0], g.param(layer, "weight", shape), g.optional(layer, "bias")]
    attributes["output_padding"] = list(layer.output_padding)
    return g.node(
        "ConvTranspose", *[x for x in inputs if x is not None], group=layer.groups, **attributes
    )


def _pool(op: str, **more: Any) -> Form:
    def form(g: Graph, layer: Any, xs: list[Value]) -> Value:
        y = g.node(op, _with_channels(g, layer, xs[0]), **_window(layer), **more)
        return g.squeeze(y, 1) if _is_flat(layer) else y

    return form


def _global_pool(op: str) -> Form:
    return lambda g, layer, xs: g.node("Flatten", g.node(op, xs[0]), axis=1)


def _lrn(g: Graph, layer: LRN, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    # Runtimes know images alone; the window lies over the channels.
    x = xs[0] if len(shape) == 3 else g.reshape(xs[0], (0, shape[0], -1, 1))
    y = g.node(
        "LRN", x, size=layer.size, alpha=layer.alpha * layer.size, beta=layer.beta, bias=layer.k
    )
    return y if len(shape) == 3 else g.reshape(y, (0, *shape))


def _upsampling(g: Graph, layer: Upsampling2D, xs: list[Value]) -> Value:
    scales = g.constant([1.0, 1.0, *layer.factors], "scales", "float32")
    nearest = layer.mode == "nearest"
    if nearest:
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        modes = {"coordinate_transformation_mode": "half_pixel"}
    return g.node("Resize", xs[0], None, scales, mode="nearest" if nearest else "linear", **modes)


_AVERAGE = _pool("AveragePool", count_include_pad=0)
_MAX = _pool("MaxPool")

SPATIAL: Mapping[type[Layer], Form] = {
    AvgPooling1D: _AVERAGE,
    AvgPooling2D: _AVERAGE,
    Conv1D: _conv,
    Conv2D: _conv,
    Conv2DTranspose: _conv_transpose,
    DepthwiseConv2D: _conv,
    FoldedConvolution: _conv,
    GlobalAvgPooling1D: _global_pool("GlobalAveragePool"),
    GlobalAvgPooling2D: _global_pool("GlobalAveragePool"),
    GlobalMaxPooling1D: _global_pool("GlobalMaxPool"),
    GlobalMaxPooling2D: _global_pool("GlobalMaxPool"),
    LRN: _lrn,
    MaxPooling1D: _MAX,
    MaxPooling2D: _MAX,
    Upsampling2D: _upsampling,
}
