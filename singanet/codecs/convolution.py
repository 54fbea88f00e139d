"""Convolutions, by the number of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from singanet.codecs.arrays import Arrays, StoredArray, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.dense import QUANTIZED
from singanet.codecs.described import WHOLE, DescribedLayer
from singanet.codecs.windows import along, kind_of, pads, sizes
from singanet.layers.layer import Layer
from singanet.types import Shape


def _window(axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    def more(d: DescribedLayer) -> dict[str, Any]:
        causal = axes == 1 and d.config["padding"] == "causal"
        border = {"border_mode": "causal"} if causal else {"pad": pads(d, "kernel_size", axes)}
        return {
            "kernel": sizes(d, "kernel_size", axes),
            "stride": sizes(d, "strides", axes),
            "dilation": sizes(d, "dilation_rate", axes),
            **border,
        }

    return more


def _cut(axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    def more(d: DescribedLayer) -> dict[str, Any]:
        """Keras cuts kernel − stride off, the larger half behind, or fills up to the stride."""
        if d.config["dilation_rate"] not in (1, [1] * axes):
            d.expect(dilation_rate=1)
        kernel, stride = sizes(d, "kernel_size", axes), sizes(d, "strides", axes)
        over = [k - s for k, s in zip(kernel, stride, strict=True)]
        cut = [max(n, 0) if d.config["padding"] == "same" else 0 for n in over]
        return {
            "kernel": kernel,
            "stride": stride,
            "pad": [(n // 2, n - n // 2) for n in cut],
            "output_padding": [max(-n, 0) for n in over],
        }

    return more


def _activated(d: DescribedLayer, layer: Layer) -> list[Layer]:
    _, *after = d.activated(layer)
    return [*along(d, layer), *after]


def _kernels(layer: Any, shape: Shape) -> Shape:
    """(F, C/groups, *taps) of (F, C/groups·taps); of a transposed one (C, F/groups, *taps)."""
    taps = layer.window.kernel
    return (shape[0], shape[1] // prod(taps), *taps)


def _by_channel(layer: Any, shape: Shape) -> Shape:
    """(C, multiplier, *taps) of (C·multiplier, taps)."""
    many = layer.depth_multiplier
    return (shape[0] // many, many, *layer.window.kernel)


def _points(layer: Any, shape: Shape) -> Shape:
    return (*shape, *(1,) * len(layer.window.kernel))


def _taps_first(*last: int) -> Callable[[Any, int], Sequence[int]]:
    return lambda layer, rank: (*range(2, rank), *last)


_BIAS = StoredArray("bias", "bias", "bias")
_CONV = stored(
    StoredArray("weight", "kernel", view=_kernels, order=_taps_first(1, 0)),
    StoredArray("weight", torch="weight", view=_kernels),
    _BIAS,
)
_DEPTHWISE = stored(
    StoredArray("weight", "kernel", view=_by_channel, order=_taps_first(0, 1)),
    StoredArray("weight", torch="weight", view=_kernels),
    _BIAS,
)
_SEPARABLE = stored(
    StoredArray("depthwise_weight", "depthwise_kernel", view=_by_channel, order=_taps_first(0, 1)),
    StoredArray("pointwise_weight", "pointwise_kernel", view=_points, order=_taps_first(1, 0)),
    StoredArray("bias", "bias"),
)

_FILTERS = {"filters": ("nb_kernels", None)}
_MULTIPLIER = {"depth_multiplier": None}


def _codecs(axes: int) -> Iterator[LayerCodec]:
    """Each with its class of Keras, which has the same name."""
    taps, all_taps = (*range(axes),), (*range(axes + 1),)
    bias = {"b_specs": ("bias", WHOLE)}
    free = {"W_specs": ("kernel", {}), **bias}
    depthwise, pointwise = ("depthwise", {taps: 1}), ("pointwise", {all_taps: 1})
    separable = {"depthwise_specs": depthwise, "pointwise_specs": pointwise, **bias}
    rows: list[tuple[str, str, Arrays, Any, Any, Any, Any]] = [
        ("Conv", "", _CONV, {**_FILTERS, "groups": None},
         {"W_specs": ("kernel", {all_taps: 1}), **bias}, QUANTIZED, _window),
        ("Conv", "Transpose", _CONV, _FILTERS, free, {"output_padding": None}, _cut),
        ("DepthwiseConv", "", _DEPTHWISE, _MULTIPLIER,
         {"W_specs": depthwise, **bias}, {}, _window),
        ("SeparableConv", "", _SEPARABLE, {**_FILTERS, **_MULTIPLIER}, separable, {}, _window),
    ]  # fmt: skip
    for name, end, arrays, fields, specs, usual, more in rows:
        if axes < 3 or name == "Conv":
            kind = kind_of(name, axes, end)
            fields = {**fields, "use_bias": bool}
            keras = KerasClass(fields, specs, usual, more(axes), _activated)
            yield LayerCodec(kind, arrays, {kind.__name__: keras} if axes < 3 else {})


CONVOLUTION = tuple(codec for axes in (1, 2, 3) for codec in _codecs(axes))
