"""Convolutions and pooling of images and of sequences, by the number of axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from singanet import layers
from singanet.keras.described import WHOLE, DescribedLayer
from singanet.layers.layer import Layer

Pads = list[tuple[int, int]]
Maker = Callable[[DescribedLayer], list[Layer]]


def _along(d: DescribedLayer, axes: int, layer: Layer, keeps: bool = True) -> list[Layer]:
    """``layer`` on Keras' samples: channels are first here, and of sequences (T, F) last there."""
    if axes > 1 or d.config.get("data_format", "channels_last") == "channels_first":
        return [layer]
    there, back = (layers.Permute(f"{d.name}_{end}", (2, 1)) for end in ("first", "last"))
    return [there, layer, back] if keeps else [there, layer]


def _conv(axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        d.expect(lora_rank=None, quantization_config=None)
        conv = _kind("Conv", axes)(
            d.name,
            d.config["filters"],
            W_specs=d.specs("kernel", {(*range(axes + 1),): 1}),
            groups=d.config["groups"],
            **_window(d, axes),
        )
        return [*_along(d, axes, conv), *d.activation()]

    return make


def _depthwise(axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        conv = _kind("DepthwiseConv", axes)(
            d.name,
            depth_multiplier=d.config["depth_multiplier"],
            W_specs=d.specs("depthwise", {(*range(axes),): 1}),
            **_window(d, axes),
        )
        return [*_along(d, axes, conv), *d.activation()]

    return make


def _separable(axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        conv = _kind("SeparableConv", axes)(
            d.name,
            d.config["filters"],
            depth_multiplier=d.config["depth_multiplier"],
            depthwise_specs=d.specs("depthwise", {(*range(axes),): 1}),
            pointwise_specs=d.specs("pointwise", {(*range(axes + 1),): 1}),
            **_window(d, axes),
        )
        return [*_along(d, axes, conv), *d.activation()]

    return make


def _window(d: DescribedLayer, axes: int) -> dict[str, Any]:
    """What all convolutions take."""
    causal = axes == 1 and d.config["padding"] == "causal"
    border = {"border_mode": "causal"} if causal else {"pad": _pads(d, "kernel_size", axes)}
    return {
        "kernel": _sizes(d, "kernel_size", axes),
        "stride": _sizes(d, "strides", axes),
        "dilation": _sizes(d, "dilation_rate", axes),
        "use_bias": bool(d.config["use_bias"]),
        "b_specs": d.specs("bias", WHOLE),
        **border,
    }


def _transposed(axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        """Keras cuts kernel − stride off, the larger half behind, or fills up to the stride."""
        d.expect(output_padding=None)
        if d.config["dilation_rate"] not in (1, [1] * axes):
            d.expect(dilation_rate=1)
        kernel, stride = _sizes(d, "kernel_size", axes), _sizes(d, "strides", axes)
        over = [k - s for k, s in zip(kernel, stride, strict=True)]
        cut = [max(n, 0) if d.config["padding"] == "same" else 0 for n in over]
        conv = _kind("Conv", axes, "Transpose")(
            d.name,
            d.config["filters"],
            kernel,
            stride,
            use_bias=bool(d.config["use_bias"]),
            W_specs=d.specs("kernel", {}),
            b_specs=d.specs("bias", WHOLE),
            pad=[(n // 2, n - n // 2) for n in cut],
            output_padding=[max(-n, 0) for n in over],
        )
        return [*_along(d, axes, conv), *d.activation()]

    return make


def _pooling(kind: str, axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        pads = _pads(d, "pool_size", axes)
        if kind == "Avg" and any(before != after for before, after in pads):
            # Keras' backends do not agree on what a mean takes in behind the last row.
            d.expect(padding="valid")
        size, stride = _sizes(d, "pool_size", axes), _sizes(d, "strides", axes)
        return _along(d, axes, _kind(f"{kind}Pooling", axes)(d.name, size, stride, pad=pads))

    return make


def _adaptive(kind: str, axes: int) -> Maker:
    name = f"Adaptive{kind}Pooling"
    return lambda d: _along(d, axes, _kind(name, axes)(d.name, _sizes(d, "output_size", axes)))


def _global(kind: str, axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        keeps = bool(d.config["keepdims"])
        pool = _kind(f"Global{kind}Pooling", axes)(d.name, keepdims=keeps)
        return _along(d, axes, pool, keeps)

    return make


def _mean_of_steps(d: DescribedLayer) -> list[Layer]:
    """A layer that goes by a mask, too."""
    axis = 2 if d.config["data_format"] == "channels_first" else 1
    return [layers.Reduce(d.name, "mean", axis, bool(d.config["keepdims"]))]


def _ends(kind: Callable[..., Layer], key: str, axes: int) -> Maker:
    def make(d: DescribedLayer) -> list[Layer]:
        given = d.config[key] if axes > 1 else [d.config[key]]
        ends = [(int(before), int(after)) for before, after in given]
        first = d.config.get("data_format") == "channels_first"
        return [kind(d.name, ends if axes > 1 or first else [*ends, (0, 0)])]

    return make


def _upsampling(d: DescribedLayer) -> list[Layer]:
    if d.config["interpolation"] != "bilinear":
        d.expect(interpolation="nearest")
    return [layers.Upsampling2D(d.name, _sizes(d, "size", 2), d.config["interpolation"])]


def _pads(d: DescribedLayer, key: str, axes: int) -> Pads:
    """Keras' 'same': as many outputs as strides fit, the larger half of the border behind."""
    if d.config["padding"] != "same":
        d.expect(padding="valid")
        return [(0, 0)] * axes
    dilation = _sizes(d, "dilation_rate", axes) if "dilation_rate" in d.config else (1,) * axes
    last = axes == 1 and d.config["data_format"] == "channels_last"
    shape = d.shapes[0][:1] if last else d.shapes[0][1:]
    given = zip(shape, _sizes(d, key, axes), _sizes(d, "strides", axes), dilation, strict=True)
    return [_same(*each) for each in given]


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    total = max((math.ceil(size / stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def _sizes(d: DescribedLayer, key: str, axes: int) -> tuple[int, ...]:
    value: Any = d.config[key]
    return tuple(map(int, value if isinstance(value, list) else [value] * axes))


def _kind(name: str, axes: int, more: str = "") -> Any:
    return getattr(layers, f"{name}{axes}D{more}")


SPATIAL: dict[str, Maker] = {
    **{f"Conv{n}D": _conv(n) for n in (1, 2)},
    **{f"Conv{n}DTranspose": _transposed(n) for n in (1, 2)},
    **{f"DepthwiseConv{n}D": _depthwise(n) for n in (1, 2)},
    **{f"SeparableConv{n}D": _separable(n) for n in (1, 2)},
    **{f"AdaptiveAveragePooling{n}D": _adaptive("Avg", n) for n in (1, 2)},
    **{f"AdaptiveMaxPooling{n}D": _adaptive("Max", n) for n in (1, 2)},
    **{f"MaxPooling{n}D": _pooling("Max", n) for n in (1, 2)},
    **{f"AveragePooling{n}D": _pooling("Avg", n) for n in (1, 2)},
    "GlobalAveragePooling1D": _mean_of_steps,
    "GlobalAveragePooling2D": _global("Avg", 2),
    **{f"GlobalMaxPooling{n}D": _global("Max", n) for n in (1, 2)},
    **{f"ZeroPadding{n}D": _ends(layers.Pad, "padding", n) for n in (1, 2)},
    **{f"Cropping{n}D": _ends(layers.Cropping, "cropping", n) for n in (1, 2)},
    "UpSampling2D": _upsampling,
}
