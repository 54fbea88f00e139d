"""Codecs of convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.layer import Layer
from singanet.ops.window import Pads, Window
from singanet.program.prediction.constant import FoldedConvolution
from singanet.saving.codecs.arithmetic import of_integers, scaled
from singanet.saving.codecs.arrays import Arrays, StoredArray, stored
from singanet.saving.codecs.choosing import lp_norm
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.dense import QUANTIZED
from singanet.saving.codecs.described import WHOLE, DescribedLayer, unknown
from singanet.saving.codecs.onnx import (
    STEPS,
    Converter,
    Form,
    Known,
    NoFormError,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    over_last,
)
from singanet.types import Array, Shape


def window_of(layer: Any, pads: Pads) -> dict[str, Any]:
    """Return the attributes of a window in ONNX."""
    window: Window = layer.window
    begins, ends = zip(*pads, strict=True)
    made = {
        "kernel_shape": [*window.kernel],
        "strides": [*window.stride],
        "pads": [*begins, *ends],
    }
    return {**made, "dilations": [*window.dilation]} if max(window.dilation) > 1 else made


def bordered(
    g: WrittenGraph, x: Value, pads: Pads, mode: str = "constant", value: float = 0.0
) -> Value:
    """Pad ``x`` (N, C, ...) explicitly."""
    return g.pad(x, [(0, 0), (0, 0), *pads], mode, value)


def with_channels(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """Add a channel axis to sequences (N, L)."""
    return g.unsqueeze(x, 1) if is_flat(layer) else x


def is_flat(layer: Any) -> bool:
    """Return whether the layer reads sequences (N, L)."""
    return len(layer.in_shapes) == len(layer.window.kernel)


Ends = list[tuple[int, int]]


def read_ints(use: Use, name: str, count: int, usual: int = 1, least: int = 1) -> list[int]:
    """Return an attribute with a number for each axis."""
    found = use.attribute(name) or [usual] * count
    if len(found) != count or min(found) < least or max(found) > 1 << 20:
        raise RefusedError(f"{name} for {count} axes, from {least}", f"{found}"[:60])
    return list(found)


def read_pads(
    use: Use, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    spread: Sequence[int],
) -> Ends:  # fmt: skip
    """Return the padding before and after each axis, from pads or auto_pad."""
    count, mode = len(sizes), use.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return [(0, 0)] * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, k, s, d in zip(sizes, kernel, stride, spread, strict=True):
            less, more = same_size(size, k, s, d)
            found.append((less, more) if mode == "SAME_UPPER" else (more, less))
        return found
    given = read_ints(use, "pads", 2 * count, 0, 0)
    return list(zip(given[:count], given[count:], strict=True))


def plain(values: Sequence[Any]) -> Any:
    """Return a pair for images, a number for sequences."""
    return tuple(values) if len(values) > 1 else values[0]


def known_kind(name: str, axes: int, more: str = "") -> Any:
    """Return the class of layers over ``axes`` axes. Errors: `RefusedError` if there is none."""
    kind = getattr(layers, f"{name}{axes}D{more}", None)
    if kind is None:
        raise RefusedError("sequences or images", f"{axes} axes after the channels")
    return kind


def sizes(d: DescribedLayer, key: str, axes: int) -> tuple[int, ...]:
    """Return a number for each axis."""
    value: Any = d.config[key]
    return tuple(map(int, value if isinstance(value, list) else [value] * axes))


def pads(d: DescribedLayer, key: str, axes: int) -> Pads:
    """Return Keras' 'same' padding: ceil(size / stride) outputs, the larger half after."""
    if d.config["padding"] != "same":
        d.expect(padding="valid")
        return ((0, 0),) * axes
    dilation = sizes(d, "dilation_rate", axes) if "dilation_rate" in d.config else (1,) * axes
    last = axes == 1 and d.config["data_format"] == "channels_last"
    shape = d.shapes[0][:1] if last else d.shapes[0][1:]
    if -1 in shape and sizes(d, "strides", axes) != (1,):
        raise unknown(d.where, "a known number of steps", f"strides={d.config['strides']}")
    given = zip(shape, sizes(d, key, axes), sizes(d, "strides", axes), dilation, strict=True)
    return tuple(same_size(*each) for each in given)


def same_size(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding for ceil(size / stride) outputs, with the larger half after."""
    total = max((math.ceil(size / stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def along_steps(form: Form) -> Form:
    """Wrap the channels-first ``form`` for sequences with channels last."""

    def put(g: WrittenGraph, layer: Any, xs: list[Value]) -> Any:
        if layer.data_format != "channels_last":
            return form(g, layer, xs)
        y: Any = form(g, layer, [g.transpose(xs[0], 0, 2, 1)])
        return g.transpose(y, 0, 2, 1) if len(layer.out_shapes) == 2 else y

    return put


def _write_conv(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    return _write_convolved(g, layer, xs[0], "weight", *bias)


def _write_convolved(g: WrittenGraph, layer: Any, x: Value, suffix: str, *bias: Value) -> Value:
    """Convolve ``x`` by the layer's window, with the parameter ``suffix`` as kernel."""
    window: Window = layer.window
    x, pads = with_channels(g, layer, x), window.pads
    mode = getattr(layer, "padding_mode", "zeros")
    if mode != "zeros":
        x, pads = bordered(g, x, pads, mode), ((0, 0),) * len(pads)
    attributes = window_of(layer, pads)
    last = getattr(layer, "data_format", None) == "channels_last"
    channels = 1 if is_flat(layer) else layer.in_shapes[-1 if last else 0]
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
    shape = (channels, layer.filters // layer.groups, *attributes["kernel_shape"])
    weight = g.param(layer, "weight", shape)
    bias = [g.param(layer, "bias")] if "bias" in layer.params else []
    attributes["output_padding"] = [*layer.output_padding]
    x = with_channels(g, layer, xs[0])
    return g.node("ConvTranspose", x, weight, *bias, group=layer.groups, **attributes)


_FIRST = {"data_format": "channels_first"}
"""The layout of operators, also after (steps, features)."""


def _read_filters(use: Use) -> tuple[Tensor, Array, Array | None]:
    x, weight = use.tensor(), use.needed(1)
    if weight.ndim != x.rank or x.rank < 3:
        raise RefusedError("kernels with the rank of their input", f"{weight.ndim}, {x.rank}")
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
        "kernel_size": plain(kernel), "strides": plain(stride), "padding": plain(pads),
        "dilation_rate": plain(spread), "use_bias": bias is not None,
    }  # fmt: skip
    name = use.name(1)
    layer: Any
    if groups == channels > 1 and axes == 2:
        layer = layers.DepthwiseConv2D(name, depth_multiplier=len(weight) // channels, **given)
    else:
        layer = known_kind("Conv", axes)(name, len(weight), groups=groups, **given, **_FIRST)
    if axes == 1 and x.sample[-1] == -1 and any(layer.window._out_size(n) != (n,) for n in STEPS):
        raise RefusedError("an unchanged number of steps if it is free", "another number")
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
    # Padding that the layer does not support is cropped or added after it.
    inside = [max(min(p), 0) for p in pads]
    layer = known_kind("Conv", axes, "Transpose")(
        use.name(1), weight.shape[1] * groups, plain(kernel), plain(stride),
        use_bias=bias is not None, padding=plain(inside),
        output_padding=plain(extra), dilation_rate=plain(spread), groups=groups, **_FIRST,
    )  # fmt: skip
    y = over_last(use, x, axes + 1, layer)
    use.fill(layer, {"weight": weight, "bias": bias})
    cut = [(b - i, a - i) for (b, a), i in zip(pads, inside, strict=True)]
    if any(value < 0 for pair in cut for value in pair):
        if bias is not None:
            raise RefusedError("an output_shape within reach of the input", f"{wanted}")
        ends = [(max(-b, 0), max(-a, 0)) for b, a in cut]
        y = use.make(layers.Pad, y, padding=tuple(ends))
    if any(value > 0 for pair in cut for value in pair):
        ends = [(max(b, 0), max(a, 0)) for b, a in cut]
        y = use.make(layers.Cropping, y, cropping=tuple(ends))
    return y


_GEOMETRY = ("kernel_size", "strides", "dilation_rate")


def _window(axes: int, d: DescribedLayer) -> dict[str, Any]:
    causal = axes == 1 and d.config["padding"] == "causal"
    border: Any = "causal" if causal else pads(d, "kernel_size", axes)
    return {key: sizes(d, key, axes) for key in _GEOMETRY} | {"padding": border} | d.lying(axes)


def _cut(axes: int, d: DescribedLayer) -> dict[str, Any]:
    if d.config["padding"] not in ("same", "valid"):
        d.expect(padding="same")
    given: dict[str, Any] = {key: sizes(d, key, axes) for key in _GEOMETRY}
    if d.config.get("output_padding") is not None:
        given["output_padding"] = sizes(d, "output_padding", axes)
    return given | {"padding": f"keras_{d.config['padding']}"} | d.lying(axes)


def _kernels(layer: Any, shape: Shape) -> Shape:
    """Return (F, C/groups, *taps) of (F, C/groups·taps), or transposed (C, F/groups, *taps)."""
    taps = layer.window.kernel
    return (shape[0], shape[1] // prod(taps), *taps)


def _by_channel(layer: Any, shape: Shape) -> Shape:
    """Return (C, multiplier, *taps) of (C·multiplier, taps)."""
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

_FILTERS = {"filters": None}
_MULTIPLIER = {"depth_multiplier": None}


def _codecs(axes: int) -> Iterator[LayerCodec]:
    """Yield the codecs over ``axes`` axes; the Keras classes have the same names."""
    taps, all_taps = (*range(axes),), (*range(axes + 1),)
    bias = {"b_specs": ("bias", WHOLE)}
    free = {"W_specs": ("kernel", {}), **bias}
    depthwise, pointwise = ("depthwise", {taps: 1}), ("pointwise", {all_taps: 1})
    separable = {"depthwise_specs": depthwise, "pointwise_specs": pointwise, **bias}
    # Name, arrays, fields, specs, fixed settings, window, form in ONNX.
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
            keras = KerasClass(fields, specs, usual, partial(more, axes), DescribedLayer.activated)
            yield LayerCodec(kind, arrays, {kind.__name__: keras}, onnx=along_steps(onnx))


_READ = {
    "Conv": _read_conv, "ConvInteger": of_integers(_read_conv),
    "ConvTranspose": _read_conv_transpose,
}  # fmt: skip

CONVOLUTION = (
    *(codec for axes in (1, 2, 3) for codec in _codecs(axes)),
    LayerCodec(FoldedConvolution, onnx=_write_conv, operators=_READ),
)


def _write_max_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    window: Window = layer.window
    x, pads = with_channels(g, layer, xs[0]), _reach(layer)
    if any(max(ends) >= size for ends, size in zip(pads, window.kernel, strict=True)):
        # Runtimes refuse padding of a window's size, which dilation allows.
        x = bordered(g, x, pads, value=-inf)
        pads = ((0, 0),) * len(pads)
    y = g.node("MaxPool", x, **window_of(layer, pads))
    return g.squeeze(y, 1) if is_flat(layer) else y


def _write_average_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    x, pads, counted = with_channels(g, layer, xs[0]), _reach(layer), layer.count_include_pad
    if counted and pads != layer.window.pads:
        # Windows beyond the padding count the padding only.
        x = bordered(g, x, layer.window.pads)
        beyond = zip(pads, layer.window.pads, strict=True)
        pads = tuple((0, end - given) for (_, end), (_, given) in beyond)
        counted = False
    y = g.node("AveragePool", x, count_include_pad=int(counted), **window_of(layer, pads))
    return g.squeeze(y, 1) if is_flat(layer) else y


def _reach(layer: Any) -> Pads:
    """Return the pads with which sizes rounded down equal the layer's."""
    window: Window = layer.window
    return window.reach(*layer._swapped(layer.in_shapes)[-len(window.kernel) :])


def _write_global_pool(op: str) -> Form:
    def put(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
        y = g.node(op, xs[0])
        return y if layer.keepdims else g.node("Flatten", y, axis=1)

    return put


def _write_adaptive_windows(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """Gather windows, (N, C, positions of the output, positions of each)."""
    flat = g.reshape(x, (0, layer._swapped(layer.in_shapes)[0], -1))
    places = g.constant(layer.found()[0], "places", np.int64)
    return g.node("Gather", flat, places, axis=2)


def _write_adaptive_mean(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    shares = g.constant(layer.found()[1], "shares")
    y = g.node("Mul", _write_adaptive_windows(g, layer, xs[0]), shares)
    out = layer._swapped(layer.out_shapes)
    return g.reshape(g.reduce("Sum", y, [3], keepdims=False), (0, *out))


def _write_adaptive_max(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    y = g.reduce("Max", _write_adaptive_windows(g, layer, xs[0]), [3], keepdims=False)
    return g.reshape(y, (0, *layer._swapped(layer.out_shapes)))


def _write_resize(g: WrittenGraph, layer: layers.Resize, xs: list[Value]) -> Value:
    out: Any = layer.out_shapes
    first = len(out) - len(layer.size)
    modes: dict[str, Any] = {
        "mode": layer.interpolation,
        "coordinate_transformation_mode": layer.coordinates,
        "nearest_mode": layer.rounding,
        "cubic_coeff_a": layer.cubic,
        "exclude_outside": int(layer.exclude_outside),
    }
    if layer.antialias:
        if g.opset < 18:
            raise NoFormError("antialias=True before opset 18")
        modes["antialias"] = 1
    if layer.scales is not None:
        ins: Any = layer.in_shapes
        factors = [*[1.0] * first, *(s or 1.0 for s in layer.scales)]
        reached = [int(n * s) for n, s in zip(ins, factors, strict=True)]
        if reached != list(out):
            raise NoFormError(f"scales that give {reached} and not {list(out)}")
        scales = g.constant([1.0, *factors], "scales", "float32")
        return g.node("Resize", xs[0], None, scales, **modes)
    size = g.node("Concat", g.extent(xs[0], 0), g.ints(out, "size"), axis=0, dtype=np.int64)
    return g.node("Resize", xs[0], None, None, size, **modes)


def _write_upsampling(g: WrittenGraph, layer: layers.Upsampling2D, xs: list[Value]) -> Value:
    scales = g.constant([1.0, 1.0, *layer.size], "scales", "float32")
    nearest = layer.interpolation == "nearest"
    if nearest:
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        modes = {"coordinate_transformation_mode": "half_pixel"}
    return g.node("Resize", xs[0], None, scales, mode="nearest" if nearest else "linear", **modes)


def _read_pool(kind: str) -> Converter:
    return lambda use: _read_windows(use, use.tensor(), kind)


def _read_lp_pool(use: Use) -> Tensor:
    """Convert to the mean of a window with its padding, times its size, of |x|ᵖ."""
    if use.attribute("ceil_mode", 0):
        raise RefusedError("ceil_mode 0", "1")
    size = float(prod(use.attribute("kernel_shape")))
    sums = lambda x: scaled(use, _read_windows(use, x, "Avg", True), size)  # noqa: E731
    return lp_norm(use, use.tensor(), use.attribute("p", 2), sums)


def _read_windows(use: Use, x: Tensor, kind: str, counted: bool = False) -> Tensor:
    kernel = list(use.attribute("kernel_shape"))
    axes = len(kernel)
    if x.rank != axes + 2:
        raise RefusedError("a kernel size for each axis after the channels", f"{kernel}")
    stride, spread = read_ints(use, "strides", axes), read_ints(use, "dilations", axes)
    given: dict[str, Any] = {"ceil_mode": bool(use.attribute("ceil_mode", 0))}
    if kind == "Avg":
        given["count_include_pad"] = counted or bool(use.attribute("count_include_pad", 0))
        if max(spread) > 1:
            raise RefusedError("windows without gaps", f"dilations {spread}")
    else:
        if use.attribute("storage_order", 0):
            raise RefusedError("storage_order 0", "1")
    pads = read_pads(use, x.sample[-axes:], kernel, stride, spread)
    sample = x.sample
    while axes > 2 and kernel[-2:] == stride[-2:] == [1, 1] and not any(map(any, pads[-2:])):
        # Two axes with windows of one pixel are merged.
        x = x.like(use.reshaped(x, (*x.sample[:-2], x.sample[-2] * x.sample[-1])))
        kernel, stride, spread = (each[:-1] for each in (kernel, stride, spread))
        pads = pads[:-1]
        axes -= 1
    if kind == "Max":
        given["dilation_rate"] = plain(spread)
    layer = known_kind(f"{kind}Pooling", axes)(
        use.name(), plain(kernel), plain(stride), plain(pads), **given, **_FIRST
    )
    y = over_last(use, x, axes + 1, layer)
    if len(x.sample) == len(sample):
        return y
    return y.like(use.reshaped(y, (*y.sample[: len(x.sample) - 1], *sample[len(x.sample) - 1 :])))


def _read_resize(use: Use) -> Tensor:
    x, opset = use.tensor(), use.opset
    scales = use.attribute("scales")
    sizes = None
    if scales is None:
        given = use.array(1 if opset < 11 else 2)
        scales = given.tolist() if given is not None and given.size else None
        sizes = _read_sizes(use, x)
    rank = x.rank
    if use.attribute("axes") is not None and len(use.attribute("axes")) != rank:
        axes = [k % rank for k in use.attribute("axes")]
        if scales is not None:
            scales = [scales[axes.index(k)] if k in axes else 1.0 for k in range(rank)]
        elif sizes is not None:
            sizes = np.array([sizes[axes.index(k)] if k in axes else 0 for k in range(rank)])
    wanted: list[int] | None = None
    stretched = False
    if scales is None:
        if sizes is None:
            raise RefusedError("scales or sizes", "neither")
        dims = x.dims(7)
        scales = [int(w) / d if w else 1.0 for w, d in zip(sizes.tolist(), dims, strict=True)]
        if x.axis is not None:
            scales[x.axis] = 1.0
        policy = use.attribute("keep_aspect_ratio_policy", "stretch")
        wanted = [int(w) for w in sizes.tolist()]
        stretched = policy == "stretch"
        if not stretched:
            # One scale, by which the smallest or the largest of the sizes is met.
            ratios = [s for s, w in zip(scales, wanted, strict=True) if w]
            one = min(ratios) if policy == "not_larger" else max(ratios)
            wanted = [round(one * d) if w else 0 for w, d in zip(wanted, dims, strict=True)]
            scales = [one if w else 1.0 for w in wanted]
    mode = use.attribute("mode", "nearest")
    usual = "half_pixel" if opset >= 11 else "asymmetric"
    where = use.attribute("coordinate_transformation_mode", usual)
    rounding = use.attribute("nearest_mode", "round_prefer_floor" if opset >= 11 else "floor")
    if where == "tf_crop_and_resize":
        raise RefusedError("the whole image", where)
    factors = [round(s) for s in scales[-2:]]
    whole = list(scales) == [1.0] * (rank - 2) + factors and min(factors) >= 1
    fits = rank == 4 and whole and not use.attribute("antialias", 0)
    if mode == "nearest":
        # With integer factors these select the same pixels as repetition.
        same = (where == "asymmetric" and rounding == "floor") or (
            where in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
            and rounding.startswith("round")
        )
        how = "nearest"
    else:
        same = mode == "linear" and where in ("half_pixel", "pytorch_half_pixel")
        same = same and (where == "half_pixel" or min(x.sample[-2:]) > 1)
        how = "bilinear"
    if fits and same:
        layer = layers.Upsampling2D(use.name(), tuple(factors), interpolation=how)
        return over_last(use, x, 3, layer)
    return _read_interpolated(use, x, scales, wanted, stretched, mode, where, rounding)


def _read_sizes(use: Use, x: Tensor) -> Array | None:
    """Return the sizes of the result, of `BATCHES` samples, which no other size may follow."""
    value = use.value(3)
    if not isinstance(value, Known) or x.axis is None or len(value.at[0]) != x.rank:
        return use.array(3)
    for one, other in zip(*(np.delete(sizes, x.axis) for sizes in value.at), strict=True):
        if one != other:
            raise RefusedError("known sizes", f"{one}")
    return value.at[0]


def _read_interpolated(
    use: Use, x: Tensor, scales: Sequence[float], wanted: Sequence[int] | None,
    stretched: bool, mode: str, where: str, rounding: str,
) -> Tensor:  # fmt: skip
    """Convert to a `Resize` of all axes of the samples."""
    size: list[int | None] = [None] * len(x.sample)
    factors: list[float | None] = [None] * len(x.sample)
    for axis, factor in enumerate(scales):
        if axis == x.axis or (factor == 1 and (wanted is None or wanted[axis] == 0)):
            if factor != 1:
                raise RefusedError("an unchanged number of samples", f"{factor}")
            continue
        k = x.place(axis) - 1
        extent = x.sample[k]
        if extent < 1 or not factor > 0:
            raise RefusedError("axes of known sizes, and positive scales", f"{factor}")
        size[k] = int(extent * factor) if wanted is None else int(wanted[axis])
        factors[k] = None if stretched else float(factor)
    return use.make(
        layers.Resize, x, size=size, interpolation=mode, coordinates=where, rounding=rounding,
        scales=factors if any(factors) else None, cubic=use.attribute("cubic_coeff_a", -0.75),
        antialias=bool(use.attribute("antialias", 0)),
        exclude_outside=bool(use.attribute("exclude_outside", 0)),
    )  # fmt: skip


def _pooled(kind: str, axes: int, d: DescribedLayer) -> dict[str, Any]:
    border = pads(d, "pool_size", axes)
    size, stride = sizes(d, "pool_size", axes), sizes(d, "strides", axes)
    wide = any(any(ends) and k > 2 for ends, k in zip(border, size, strict=True))
    if kind == "Avg" and wide and any(before != after for before, after in border):
        # Keras' backends disagree about means beyond the last row, except in windows of two.
        d.expect(padding="valid")
    return {"pool_size": size, "strides": stride, "padding": border, **d.lying(axes)}


def _adaptive(axes: int, d: DescribedLayer) -> dict[str, Any]:
    return {"output_size": sizes(d, "output_size", axes), **d.lying(axes)}


def _mean_of_steps(d: DescribedLayer) -> list[Layer]:
    """Convert to a mean over steps that uses a mask."""
    axis = 2 if d.config["data_format"] == "channels_first" else 1
    return [layers.Reduce(d.name, "mean", axis, bool(d.config["keepdims"]))]


def _upsampling(d: DescribedLayer) -> dict[str, Any]:
    if d.config["interpolation"] != "bilinear":
        d.expect(interpolation="nearest")
    return {"size": sizes(d, "size", 2), "interpolation": d.config["interpolation"]}


def _repeated(d: DescribedLayer) -> list[Layer]:
    """Repeat the positions along each axis; steps along the first of (T, F)."""
    shape, axes = d.shapes[0], len(d.shapes[0]) - 1
    extents = shape[:1] if axes == 1 else shape[1:]
    size = [n * k for n, k in zip(extents, sizes(d, "size", axes), strict=True)]
    modes: dict[str, Any] = {"interpolation": "nearest", "rounding": "round_prefer_ceil"}
    return d.along_channels(layers.Resize(d.name, size, **modes))


def _resizing(d: DescribedLayer) -> list[Layer]:
    size = int(d.config["height"]), int(d.config["width"])
    height, width = _sides(d)
    made: list[Layer] = []
    if d.config["crop_to_aspect_ratio"]:
        made = _cropped(d, size)
    elif d.config["pad_to_aspect_ratio"]:
        d.expect(fill_mode="constant")
        tall = max(height, int(float(width * size[0]) / size[1]))
        wide = max(width, int(float(height * size[1]) / size[0]))
        if (tall - height) % 2 or (wide - width) % 2:
            # Keras' backends disagree about the odd row.
            d.expect(pad_to_aspect_ratio=False)
        ends = [((n - m) // 2,) * 2 for n, m in ((tall, height), (wide, width))]
        value = float(d.config["fill_value"])
        made = [layers.Pad(f"{d.name}_pad", ends, value=value)]
    for key in ("crop_to_aspect_ratio", "pad_to_aspect_ratio", "fill_mode", "fill_value"):
        d.config.get(key)
    return [*made, _resized(d, size)]


def _center_crop(d: DescribedLayer) -> list[Layer]:
    """Crop images that are large enough; crop others to the ratio of the sides and resize them."""
    size = int(d.config["height"]), int(d.config["width"])
    more = [n - m for n, m in zip(_sides(d), size, strict=True)]
    if min(more) < 0:
        return [*_cropped(d, size), _resized(d, size)]
    return [layers.Cropping(d.name, [(n // 2, n - n // 2) for n in more])]


def _sides(d: DescribedLayer) -> tuple[int, int]:
    if len(d.shapes[0]) != 3 or d.integers:
        received = "integers" if d.integers else f"samples {d.shapes[0]}"
        raise unknown(d.where, "images of floats", received)
    _, height, width = d.shapes[0]
    return height, width


def _cropped(d: DescribedLayer, size: tuple[int, int]) -> list[Layer]:
    """Crop to the ratio of the sides of ``size``."""
    height, width = _sides(d)
    tall = max(min(height, int(float(width * size[0]) / size[1])), 1)
    wide = max(min(width, int(float(height * size[1]) / size[0])), 1)
    ends = [((n - m) // 2, n - m - (n - m) // 2) for n, m in ((height, tall), (width, wide))]
    return [layers.Cropping(f"{d.name}_crop", ends)]


def _resized(d: DescribedLayer, size: tuple[int, int]) -> Layer:
    way, smooth = d.config.get("interpolation", "bilinear"), bool(d.config.get("antialias", False))
    if way == "nearest":
        nearest: dict[str, Any] = {"interpolation": way, "rounding": "round_prefer_ceil"}
        return layers.Resize(d.name, size, **nearest)
    # Keras' backends disagree about cubic kernels.
    d.expect(interpolation="bilinear")
    return layers.Resize(d.name, size, antialias=smooth, exclude_outside=smooth)


_KINDS = (
    ("Max", "Max", _write_max_pool, _write_adaptive_max, "GlobalMaxPool"),
    ("Avg", "Average", _write_average_pool, _write_adaptive_mean, "GlobalAveragePool"),
)
"""Our name, Keras' name, and the forms in ONNX."""


def _pooling_codecs(axes: int) -> Iterator[LayerCodec]:
    pooled = KerasClass(more=partial(_adaptive, axes))
    whole = KerasClass({"keepdims": bool}, more=lambda d: d.lying(axes))
    of_steps = KerasClass(draw=_mean_of_steps, masked=True)
    for ours, theirs, one, adaptive, op in _KINDS:
        of_all = of_steps if (ours, axes) == ("Avg", 1) else whole
        by_window = KerasClass(more=partial(_pooled, ours, axes))
        for name, keras, onnx in (
            ("", by_window, one), ("Adaptive", pooled, adaptive),
            ("Global", of_all, _write_global_pool(op)),
        ):  # fmt: skip
            kind = known_kind(f"{name}{ours}Pooling", axes)
            known = {f"{name}{theirs}Pooling{axes}D": keras}
            yield LayerCodec(kind, keras=known, onnx=along_steps(onnx))


_ENLARGED = {"Resize": _read_resize, "Upsample": _read_resize}
_POOLS = {"MaxPool": _read_pool("Max"), "AveragePool": _read_pool("Avg"), "LpPool": _read_lp_pool}

POOLING = (
    *(codec for axes in (1, 2, 3) for codec in _pooling_codecs(axes)),
    LayerCodec(
        layers.Resize,
        keras={
            "Resizing": KerasClass(draw=_resizing, prepares=True),
            "CenterCrop": KerasClass(draw=_center_crop, prepares=True),
            "UpSampling1D": KerasClass(draw=_repeated),
            "UpSampling3D": KerasClass(draw=_repeated),
        },
        onnx=_write_resize,
        operators=_ENLARGED,
    ),
    LayerCodec(
        layers.Upsampling2D,
        keras=KerasClass(more=_upsampling),
        keras_name="UpSampling2D",
        onnx=_write_upsampling,
        operators=_POOLS,
    ),
)
