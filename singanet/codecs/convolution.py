"""Convolutions, by the number of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from singanet import layers
from singanet.codecs.arrays import Arrays, StoredArray, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.dense import QUANTIZED
from singanet.codecs.described import WHOLE, DescribedLayer
from singanet.codecs.onnx import (
    STEPS,
    Form,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    over_last,
)
from singanet.codecs.windows import (
    along,
    bordered,
    is_flat,
    known_kind,
    pads,
    plain,
    read_ints,
    read_pads,
    sizes,
    window_of,
    with_channels,
)
from singanet.layers.layer import Layer
from singanet.ops.window import Window
from singanet.program.prediction.folding import FoldedConvolution
from singanet.types import Array, Shape


def _write_conv(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    return _write_convolved(g, layer, xs[0], "weight", *bias)


def _write_convolved(g: WrittenGraph, layer: Any, x: Value, suffix: str, *bias: Value) -> Value:
    """``x`` under the layer's window, with the parameter ``suffix`` for kernels."""
    window: Window = layer.window
    x, pads = with_channels(g, layer, x), window.pads
    mode = getattr(layer, "padding_mode", "zeros")
    if mode != "zeros":
        x, pads = bordered(g, x, pads, mode), ((0, 0),) * len(pads)
    attributes = window_of(layer, pads)
    shape: Any = layer.in_shapes
    channels = 1 if is_flat(layer) else shape[0]
    count, rest = layer.params[suffix].shape
    per_group = rest // prod(window.kernel)
    weight = g.param(layer, suffix, (count, per_group, *attributes["kernel_shape"]))
    return g.node("Conv", x, weight, *bias, group=channels // per_group, **attributes)


def _write_separable_conv(g: WrittenGraph, layer: layers.SeparableConv2D, xs: list[Value]) -> Value:
    inner = _write_convolved(g, layer, xs[0], "depthwise_weight")
    shape = (*layer.params["pointwise_weight"].shape, *(1,) * len(layer.window.kernel))
    bias = [g.param(layer, "bias")] if layer.use_bias else []
    return g.node("Conv", inner, g.param(layer, "pointwise_weight", shape), *bias)


def _write_conv_transpose(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    attributes = window_of(layer, layer.window.pads)
    channels = layer.params["weight"].shape[0]
    shape = (channels, layer.nb_kernels // layer.groups, *attributes["kernel_shape"])
    weight = g.param(layer, "weight", shape)
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    attributes["output_padding"] = [*layer.output_padding]
    x = with_channels(g, layer, xs[0])
    return g.node("ConvTranspose", x, weight, *bias, group=layer.groups, **attributes)


def _read_filters(use: Use) -> tuple[Tensor, Array, Array | None]:
    x, weight = use.tensor(), use.needed(1)
    if weight.ndim != x.rank or x.rank < 3:
        raise RefusedError("kernels of as many axes as their input", f"{weight.ndim}, {x.rank}")
    return x, weight, use.array(2)


def _read_conv(use: Use) -> Tensor:
    x, weight, bias = _read_filters(use)
    axes = weight.ndim - 2
    kernel, groups = list(weight.shape[2:]), use.attribute("group", 1)
    if use.attribute("kernel_shape", kernel) != kernel:
        raise RefusedError(f"kernel_shape {kernel}", f"{use.attribute('kernel_shape')}"[:60])
    stride, spread = read_ints(use, "strides", axes), read_ints(use, "dilations", axes)
    channels = x.sample[-axes - 1]
    if groups < 1 or groups * weight.shape[1] != channels:
        raise RefusedError(f"{channels} channels in {groups} groups", f"{weight.shape}")
    pads = read_pads(use, x.sample[-axes:], kernel, stride, spread)
    given: dict[str, Any] = {
        "kernel": plain(kernel), "stride": plain(stride), "pad": plain(pads),
        "dilation": plain(spread), "use_bias": bias is not None,
    }  # fmt: skip
    name = use.name(1)
    layer: Any
    if groups == channels > 1 and axes == 2:
        layer = layers.DepthwiseConv2D(name, depth_multiplier=len(weight) // channels, **given)
    else:
        layer = known_kind("Conv", axes)(name, len(weight), groups=groups, **given)
    if axes == 1 and x.sample[-1] == -1 and any(layer.window.out_size(n) != (n,) for n in STEPS):
        raise RefusedError("as many steps as come in, where they may be any number", "others")
    y = over_last(use, x, axes + 1, layer)
    use.fill(layer, {"weight": weight, "bias": bias})
    return y


def _read_conv_transpose(use: Use) -> Tensor:
    x, weight, bias = _read_filters(use)
    axes, groups = weight.ndim - 2, use.attribute("group", 1)
    kernel = list(weight.shape[2:])
    stride, spread = read_ints(use, "strides", axes), read_ints(use, "dilations", axes)
    extra = read_ints(use, "output_padding", axes, 0, 0)
    sizes = x.sample[-axes:]
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, k, d, e in zip(sizes, stride, kernel, spread, extra, strict=True)
    ]
    wanted = use.attribute("output_shape")
    mode = use.attribute("auto_pad", "NOTSET")
    if wanted is None and mode.startswith("SAME"):
        wanted = [n * s for n, s in zip(sizes, stride, strict=True)]
    if wanted is not None:
        totals = [f - w for f, w in zip(full, wanted[-axes:], strict=True)]
        upper = mode == "SAME_UPPER"
        pads = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    else:
        pads = read_pads(use, sizes, kernel, stride, spread)
    if any(e >= s for e, s in zip(extra, stride, strict=True)):
        raise RefusedError("output_padding below the strides", f"{extra}")
    # What the layer would have to leave out unevenly is cut off behind it, or put there.
    inside = [max(min(p), 0) for p in pads]
    layer = known_kind("Conv", axes, "Transpose")(
        use.name(1), weight.shape[1] * groups, plain(kernel), plain(stride),
        use_bias=bias is not None, pad=plain(inside),
        output_padding=plain(extra), dilation=plain(spread), groups=groups,
    )  # fmt: skip
    y = over_last(use, x, axes + 1, layer)
    use.fill(layer, {"weight": weight, "bias": bias})
    cut = [(b - i, a - i) for (b, a), i in zip(pads, inside, strict=True)]
    if any(value < 0 for pair in cut for value in pair):
        if bias is not None:
            raise RefusedError("an output_shape that the input reaches", f"{wanted}")
        ends = [(max(-b, 0), max(-a, 0)) for b, a in cut]
        y = use.make(layers.Pad, y, pad=tuple(ends))
    if any(value > 0 for pair in cut for value in pair):
        ends = [(max(b, 0), max(a, 0)) for b, a in cut]
        y = use.make(layers.Cropping, y, crop=tuple(ends))
    return y


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
        if d.config["padding"] not in ("same", "valid"):
            d.expect(padding="same")
        extra = d.config.get("output_padding")
        return {
            "kernel": sizes(d, "kernel_size", axes),
            "stride": sizes(d, "strides", axes),
            "dilation": sizes(d, "dilation_rate", axes),
            "border_mode": f"keras_{d.config['padding']}",
            "output_padding": None if extra is None else sizes(d, "output_padding", axes),
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
    # Name, arrays, fields, specs, settings that alone are known, window, and the form in ONNX.
    rows: list[tuple[str, Arrays, Any, Any, Any, Any, Form]] = [
        ("Conv{}D", _CONV, {**_FILTERS, "groups": None},
         {"W_specs": ("kernel", {all_taps: 1}), **bias}, QUANTIZED, _window, _write_conv),
        ("Conv{}DTranspose", _CONV, _FILTERS, free, {}, _cut,
         _write_conv_transpose),
        ("DepthwiseConv{}D", _DEPTHWISE, _MULTIPLIER, {"W_specs": depthwise, **bias}, {}, _window,
         _write_conv),
        ("SeparableConv{}D", _SEPARABLE, {**_FILTERS, **_MULTIPLIER}, separable, {}, _window,
         _write_separable_conv),
    ]  # fmt: skip
    for name, arrays, fields, specs, usual, more, onnx in rows:
        kind = getattr(layers, name.format(axes), None)
        if kind is not None:
            fields = {**fields, "use_bias": bool}
            keras = KerasClass(fields, specs, usual, more(axes), _activated)
            yield LayerCodec(kind, arrays, {kind.__name__: keras} if axes < 3 else {}, onnx=onnx)


_READ = {"Conv": _read_conv, "ConvTranspose": _read_conv_transpose}

CONVOLUTION = (
    *(codec for axes in (1, 2, 3) for codec in _codecs(axes)),
    LayerCodec(FoldedConvolution, onnx=_write_conv, operators=_READ),
)
