"""Convolutions and pooling of images and of sequences."""

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
    conv = layers.Conv2D(
        d.name,
        d.config["filters"],
        _pair(d, "kernel_size"),
        _pair(d, "strides"),
        use_bias=bool(d.config["use_bias"]),
        W_specs=d.specs("kernel", {(0, 1, 2): 1}),
        b_specs=d.specs("bias", WHOLE),
        pad=_pads(d, "kernel_size"),
        dilation=_pair(d, "dilation_rate"),
        groups=d.config["groups"],
    )
    return [conv, *d.activation()]


def _conv1d(d: Described) -> list[Layer]:
    d.expect(lora_rank=None, quantization_config=None)
    causal = d.config["padding"] == "causal"
    conv = layers.Conv1D(
        d.name,
        d.config["filters"],
        _one(d, "kernel_size"),
        _one(d, "strides"),
        use_bias=bool(d.config["use_bias"]),
        W_specs=d.specs("kernel", {(0, 1): 1}),
        b_specs=d.specs("bias", WHOLE),
        border_mode="causal" if causal else "valid",
        pad=None if causal else _ends(d, "kernel_size"),
        dilation=_one(d, "dilation_rate"),
        groups=d.config["groups"],
    )
    return [*_signal(d, conv), *d.activation()]


def _depthwise1d(d: Described) -> list[Layer]:
    causal = d.config["padding"] == "causal"
    conv = layers.DepthwiseConv1D(
        d.name,
        _one(d, "kernel_size"),
        _one(d, "strides"),
        "causal" if causal else "valid",
        d.config["depth_multiplier"],
        bool(d.config["use_bias"]),
        d.specs("depthwise", {(0,): 1}),
        d.specs("bias", WHOLE),
        None if causal else _ends(d, "kernel_size"),
        dilation=_one(d, "dilation_rate"),
    )
    return [*_signal(d, conv), *d.activation()]


def _separable1d(d: Described) -> list[Layer]:
    conv = layers.SeparableConv1D(
        d.name,
        d.config["filters"],
        _one(d, "kernel_size"),
        _one(d, "strides"),
        depth_multiplier=d.config["depth_multiplier"],
        use_bias=bool(d.config["use_bias"]),
        depthwise_specs=d.specs("depthwise", {(0,): 1}),
        pointwise_specs=d.specs("pointwise", {(0, 1): 1}),
        b_specs=d.specs("bias", WHOLE),
        pad=_ends(d, "kernel_size"),
        dilation=_one(d, "dilation_rate"),
    )
    return [*_signal(d, conv), *d.activation()]


def _depthwise(d: Described) -> list[Layer]:
    conv = layers.DepthwiseConv2D(
        d.name,
        _pair(d, "kernel_size"),
        _pair(d, "strides"),
        depth_multiplier=d.config["depth_multiplier"],
        use_bias=bool(d.config["use_bias"]),
        W_specs=d.specs("depthwise", {(0, 1): 1}),
        b_specs=d.specs("bias", WHOLE),
        pad=_pads(d, "kernel_size"),
        dilation=_pair(d, "dilation_rate"),
    )
    return [conv, *d.activation()]


def _separable(d: Described) -> list[Layer]:
    conv = layers.SeparableConv2D(
        d.name,
        d.config["filters"],
        _pair(d, "kernel_size"),
        _pair(d, "strides"),
        depth_multiplier=d.config["depth_multiplier"],
        use_bias=bool(d.config["use_bias"]),
        depthwise_specs=d.specs("depthwise", {(0, 1): 1}),
        pointwise_specs=d.specs("pointwise", {(0, 1, 2): 1}),
        b_specs=d.specs("bias", WHOLE),
        pad=_pads(d, "kernel_size"),
        dilation=_pair(d, "dilation_rate"),
    )
    return [conv, *d.activation()]


def _transposed(d: Described) -> list[Layer]:
    kernel, stride = _pair(d, "kernel_size"), _pair(d, "strides")
    ends = [_cut(d, k, s) for k, s in zip(kernel, stride, strict=True)]
    conv = layers.Conv2DTranspose(
        d.name,
        d.config["filters"],
        kernel,
        stride,
        use_bias=bool(d.config["use_bias"]),
        W_specs=d.specs("kernel", {}),
        b_specs=d.specs("bias", WHOLE),
        pad=[pads for pads, _ in ends],
        output_padding=tuple(more for _, more in ends),
    )
    return [conv, *d.activation()]


def _transposed1d(d: Described) -> list[Layer]:
    kernel, stride = _one(d, "kernel_size"), _one(d, "strides")
    pads, more = _cut(d, kernel, stride)
    conv = layers.Conv1DTranspose(
        d.name,
        d.config["filters"],
        kernel,
        stride,
        use_bias=bool(d.config["use_bias"]),
        W_specs=d.specs("kernel", {}),
        b_specs=d.specs("bias", WHOLE),
        pad=pads,
        output_padding=more,
    )
    return [*_signal(d, conv), *d.activation()]


def _cut(d: Described, kernel: int, stride: int) -> tuple[tuple[int, int], int]:
    """Keras cuts kernel − stride off, the larger half behind, or fills up to the stride."""
    d.expect(output_padding=None)
    given = d.config["dilation_rate"]
    if given not in (1, [1], [1, 1]):
        d.expect(dilation_rate=1)
    over = max(kernel - stride, 0) if d.config["padding"] == "same" else 0
    return (over // 2, over - over // 2), max(stride - kernel, 0)


def _pooling(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        pads = _pads(d, "pool_size")
        _expect_even(d, kind, pads)
        return [kind(d.name, _pair(d, "pool_size"), _pair(d, "strides"), pad=pads)]

    return make


def _pooling1d(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        ends = _ends(d, "pool_size")
        _expect_even(d, kind, [ends])
        return _signal(d, kind(d.name, _one(d, "pool_size"), _one(d, "strides"), pad=ends))

    return make


def _expect_even(d: Described, kind: Callable[..., Layer], pads: Pads) -> None:
    """Keras' backends do not agree on what a mean takes in behind the last row."""
    average = kind in (layers.AvgPooling1D, layers.AvgPooling2D)
    if average and any(before != after for before, after in pads):
        d.expect(padding="valid")


def _signal(d: Described, *along: Layer, keeps: bool = True) -> list[Layer]:
    """Layers along one axis: the channels are first here, and the last of Keras' (T, F)."""
    if d.config.get("data_format", "channels_last") == "channels_first":
        return [*along]
    there, back = (layers.Permute(f"{d.name}_{end}", (2, 1)) for end in ("first", "last"))
    return [there, *along, back] if keeps else [there, *along]


def _pads(d: Described, key: str) -> Pads:
    """Keras' 'same': as many outputs as strides fit, the larger half of the border behind."""
    if d.config["padding"] != "same":
        d.expect(padding="valid")
        return [(0, 0), (0, 0)]
    dilation = _pair(d, "dilation_rate") if "dilation_rate" in d.config else (1, 1)
    sizes = d.shapes[0][1:]
    return [
        _same(*each)
        for each in zip(sizes, _pair(d, key), _pair(d, "strides"), dilation, strict=True)
    ]


def _ends(d: Described, key: str) -> tuple[int, int]:
    """`_pads` of the steps of a sequence."""
    if d.config["padding"] != "same":
        d.expect(padding="valid")
        return (0, 0)
    length = d.shapes[0][0 if d.config["data_format"] == "channels_last" else 1]
    dilation = _one(d, "dilation_rate") if "dilation_rate" in d.config else 1
    return _same(length, _one(d, key), _one(d, "strides"), dilation)


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    total = max((math.ceil(size / stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def _zero_padding(d: Described) -> list[Layer]:
    (top, bottom), (left, right) = d.config["padding"]
    return [layers.Pad(d.name, [(top, bottom), (left, right)])]


def _cropping(d: Described) -> list[Layer]:
    (top, bottom), (left, right) = d.config["cropping"]
    return [layers.Cropping(d.name, [(top, bottom), (left, right)])]


def _around_steps(kind: Callable[..., Layer], key: str) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        before, after = d.config[key]
        return [kind(d.name, [(int(before), int(after)), (0, 0)])]

    return make


def _upsampling(d: Described) -> list[Layer]:
    if d.config["interpolation"] != "bilinear":
        d.expect(interpolation="nearest")
    return [layers.Upsampling2D(d.name, _pair(d, "size"), d.config["interpolation"])]


def _global(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    return lambda d: [kind(d.name, keepdims=bool(d.config["keepdims"]))]


def _adaptive(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    return lambda d: [kind(d.name, d.config["output_size"])]


def _adaptive1d(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    return lambda d: _signal(d, kind(d.name, _one(d, "output_size")))


def _mean_of_steps(d: Described) -> list[Layer]:
    axis = 2 if d.config["data_format"] == "channels_first" else 1
    return [layers.Reduce(d.name, "mean", axis, bool(d.config["keepdims"]))]


def _global1d(kind: Callable[..., Layer]) -> Callable[[Described], list[Layer]]:
    def make(d: Described) -> list[Layer]:
        keeps = bool(d.config["keepdims"])
        return _signal(d, kind(d.name, keepdims=keeps), keeps=keeps)

    return make


def _one(d: Described, key: str) -> int:
    value: Any = d.config[key]
    return int(value[0] if isinstance(value, list) else value)


def _pair(d: Described, key: str) -> tuple[int, int]:
    value: Any = d.config[key]
    height, width = value if isinstance(value, list) else (value, value)
    return int(height), int(width)


SPATIAL: dict[str, Callable[[Described], list[Layer]]] = {
    "Conv1D": _conv1d,
    "Conv1DTranspose": _transposed1d,
    "Conv2D": _conv2d,
    "Conv2DTranspose": _transposed,
    "DepthwiseConv1D": _depthwise1d,
    "DepthwiseConv2D": _depthwise,
    "SeparableConv1D": _separable1d,
    "SeparableConv2D": _separable,
    "AdaptiveAveragePooling1D": _adaptive1d(layers.AdaptiveAvgPooling1D),
    "AdaptiveAveragePooling2D": _adaptive(layers.AdaptiveAvgPooling2D),
    "AdaptiveMaxPooling1D": _adaptive1d(layers.AdaptiveMaxPooling1D),
    "AdaptiveMaxPooling2D": _adaptive(layers.AdaptiveMaxPooling2D),
    "MaxPooling1D": _pooling1d(layers.MaxPooling1D),
    "MaxPooling2D": _pooling(layers.MaxPooling2D),
    "AveragePooling1D": _pooling1d(layers.AvgPooling1D),
    "AveragePooling2D": _pooling(layers.AvgPooling2D),
    "GlobalAveragePooling1D": _mean_of_steps,
    "GlobalAveragePooling2D": _global(layers.GlobalAvgPooling2D),
    "GlobalMaxPooling1D": _global1d(layers.GlobalMaxPooling1D),
    "GlobalMaxPooling2D": _global(layers.GlobalMaxPooling2D),
    "ZeroPadding1D": _around_steps(layers.Pad, "padding"),
    "ZeroPadding2D": _zero_padding,
    "Cropping1D": _around_steps(layers.Cropping, "cropping"),
    "Cropping2D": _cropping,
    "UpSampling2D": _upsampling,
}
