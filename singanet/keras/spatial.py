"""Convolutions and pooling of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from singanet import layers
from singanet.keras.described import WHOLE, Described
from singanet.layers.layer import Layer

Pads = list[tuple[int, int]]


def _conv2d(d: Described) -> list[Layer]:
    d.expect(lora_rank=None, quantization_config=None)
    return _convolution(
        d,
        lambda mode: layers.Conv2D(
            d.name,
            d.config["filters"],
            _pair(d, "kernel_size"),
            _pair(d, "strides"),
            mode,
            use_bias=bool(d.config["use_bias"]),
            W_specs=d.specs("kernel", {(0, 1, 2): 1}),
            b_specs=d.specs("bias", WHOLE),
            dilation=_pair(d, "dilation_rate"),
            groups=d.config["groups"],
        ),
    )


def _depthwise(d: Described) -> list[Layer]:
    return _convolution(
        d,
        lambda mode: layers.DepthwiseConv2D(
            d.name,
            _pair(d, "kernel_size"),
            _pair(d, "strides"),
            mode,
            d.config["depth_multiplier"],
            bool(d.config["use_bias"]),
            d.specs("depthwise", {(0, 1): 1}),
            d.specs("bias", WHOLE),
            dilation=_pair(d, "dilation_rate"),
        ),
    )


def _separable(d: Described) -> list[Layer]:
    return _convolution(
        d,
        lambda mode: layers.SeparableConv2D(
            d.name,
            d.config["filters"],
            _pair(d, "kernel_size"),
            _pair(d, "strides"),
            mode,
            d.config["depth_multiplier"],
            bool(d.config["use_bias"]),
            d.specs("depthwise", {(0, 1): 1}),
            d.specs("pointwise", {(0, 1, 2): 1}),
            d.specs("bias", WHOLE),
            dilation=_pair(d, "dilation_rate"),
        ),
    )


def _convolution(d: Described, make: Callable[[str], Layer]) -> list[Layer]:
    """Keras pads for the stride; with stride 1 that is our 'same', else a border of zeros."""
    if d.config["padding"] == "same" and _pair(d, "strides") != (1, 1):
        dilation, kernel = _pair(d, "dilation_rate"), _pair(d, "kernel_size")
        extent = tuple(r * (k - 1) + 1 for r, k in zip(dilation, kernel, strict=True))
        border = layers.Pad(f"{d.name}_pad", _pads(d, extent))
        return [border, make("valid"), *d.activation()]
    return [make(d.config["padding"]), *d.activation()]


def _pooling(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        size, same = _pair(d, "pool_size"), d.config["padding"] == "same"
        pads = _pads(d, size) if same else [(0, 0)]
        if kind is layers.AvgPooling2D and any(before != after for before, after in pads):
            # Keras' backends do not agree on what is behind the last row.
            d.expect(padding="valid")
        return [kind(d.name, size, _pair(d, "strides"), pad=pads if same else 0)]

    return make


def _pads(d: Described, extent: tuple[int, ...]) -> Pads:
    """Keras' 'same': as many outputs as strides fit, the larger half of the border behind."""
    found = []
    for size, k, stride in zip(d.shapes[0][1:], extent, _pair(d, "strides"), strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + k - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def _zero_padding(d: Described) -> list[Layer]:
    (top, bottom), (left, right) = d.config["padding"]
    return [layers.Pad(d.name, [(top, bottom), (left, right)])]


def _cropping(d: Described) -> list[Layer]:
    (top, bottom), (left, right) = d.config["cropping"]
    return [layers.Cropping(d.name, [(top, bottom), (left, right)])]


def _upsampling(d: Described) -> list[Layer]:
    d.expect(interpolation="nearest")
    return [layers.Upsampling2D(d.name, _pair(d, "size"))]


def _global(kind: type[Layer]) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        d.expect(keepdims=False)
        return [kind(d.name)]

    return make


def _pair(d: Described, key: str) -> tuple[int, int]:
    value: Any = d.config[key]
    height, width = value if isinstance(value, list) else (value, value)
    return int(height), int(width)


SPATIAL: dict[str, Callable[[Described], list[Layer]]] = {
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _depthwise,
    "SeparableConv2D": _separable,
    "MaxPooling2D": _pooling(layers.MaxPooling2D),
    "AveragePooling2D": _pooling(layers.AvgPooling2D),
    "GlobalAveragePooling2D": _global(layers.GlobalAvgPooling2D),
    "GlobalMaxPooling2D": _global(layers.GlobalMaxPooling2D),
    "ZeroPadding2D": _zero_padding,
    "Cropping2D": _cropping,
    "UpSampling2D": _upsampling,
}
