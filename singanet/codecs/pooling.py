"""Pools, reductions and enlarged images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer
from singanet.codecs.onnx import (
    Converter,
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
    kind_of,
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
from singanet.ops.window import Pads, Window


def _write_max_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    window: Window = layer.window
    x, pads = with_channels(g, layer, xs[0]), _reach(layer)
    if any(max(ends) >= size for ends, size in zip(pads, window.kernel, strict=True)):
        # A border that wide, as dilation allows, runtimes refuse.
        x = bordered(g, x, pads, value=-inf)
        pads = ((0, 0),) * len(pads)
    y = g.node("MaxPool", x, **window_of(layer, pads))
    return g.squeeze(y, 1) if is_flat(layer) else y


def _write_average_pool(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    x, pads, counted = with_channels(g, layer, xs[0]), _reach(layer), layer.count_include_pad
    if counted and pads != layer.window.pads:
        # Of windows beyond the border the border alone counts.
        x = bordered(g, x, layer.window.pads)
        beyond = zip(pads, layer.window.pads, strict=True)
        pads = tuple((0, end - given) for (_, end), (_, given) in beyond)
        counted = False
    y = g.node("AveragePool", x, count_include_pad=int(counted), **window_of(layer, pads))
    return g.squeeze(y, 1) if is_flat(layer) else y


def _reach(layer: Any) -> Pads:
    """The pads with which sizes that are rounded down are those of the layer."""
    window: Window = layer.window
    return window.reach(*layer.in_shapes[-len(window.kernel) :])


def _write_global_pool(op: str) -> Form:
    def put(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
        y = g.node(op, xs[0])
        return y if layer.keepdims else g.node("Flatten", y, axis=1)

    return put


def _write_adaptive_windows(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """(N, C, positions of the output, positions of each)."""
    flat = g.reshape(x, (0, layer.in_shapes[0], -1))
    places = g.constant(layer.found()[0], "places", np.int64)
    return g.node("Gather", flat, places, axis=2)


def _write_adaptive_mean(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    shares = g.constant(layer.found()[1], "shares")
    y = g.node("Mul", _write_adaptive_windows(g, layer, xs[0]), shares)
    return g.reshape(g.reduce("Sum", y, [3], keepdims=False), (0, *layer.out_shapes))


def _write_adaptive_max(g: WrittenGraph, layer: Any, xs: list[Value]) -> Value:
    y = g.reduce("Max", _write_adaptive_windows(g, layer, xs[0]), [3], keepdims=False)
    return g.reshape(y, (0, *layer.out_shapes))


def _write_upsampling(g: WrittenGraph, layer: layers.Upsampling2D, xs: list[Value]) -> Value:
    scales = g.constant([1.0, 1.0, *layer.factors], "scales", "float32")
    nearest = layer.mode == "nearest"
    if nearest:
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        modes = {"coordinate_transformation_mode": "half_pixel"}
    return g.node("Resize", xs[0], None, scales, mode="nearest" if nearest else "linear", **modes)


def _read_pool(kind: str) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        kernel = list(use.attribute("kernel_shape"))
        axes = len(kernel)
        if x.rank != axes + 2:
            raise RefusedError("a kernel for each axis behind the channels", f"{kernel}")
        stride, spread = read_ints(use, "strides", axes), read_ints(use, "dilations", axes)
        given: dict[str, Any] = {"ceil_mode": bool(use.attribute("ceil_mode", 0))}
        if kind == "Avg":
            given["count_include_pad"] = bool(use.attribute("count_include_pad", 0))
            if max(spread) > 1:
                raise RefusedError("windows without gaps", f"dilations {spread}")
        else:
            if use.attribute("storage_order", 0):
                raise RefusedError("storage_order 0", "another")
        pads = read_pads(use, x.sample[-axes:], kernel, stride, spread)
        sample = x.sample
        while axes > 2 and kernel[-2:] == stride[-2:] == [1, 1] and not any(map(any, pads[-2:])):
            # Where windows are one pixel wide two axes may as well be one.
            x = x.like(use.reshaped(x, (*x.sample[:-2], x.sample[-2] * x.sample[-1])))
            kernel, stride, spread = (each[:-1] for each in (kernel, stride, spread))
            pads = pads[:-1]
            axes -= 1
        if kind == "Max":
            given["dilation"] = plain(spread)
        layer = known_kind(f"{kind}Pooling", axes)(
            use.name(), plain(kernel), plain(stride), pad=plain(pads), **given
        )
        y = over_last(use, x, axes + 1, layer)
        if len(x.sample) == len(sample):
            return y
        return y.like(
            use.reshaped(y, (*y.sample[: len(x.sample) - 1], *sample[len(x.sample) - 1 :]))
        )

    return convert


def _read_resize(use: Use) -> Tensor:
    x, opset = use.tensor(), use.opset
    scales = use.attribute("scales")
    sizes = None
    if scales is None:
        given = use.array(1 if opset < 11 else 2)
        scales = given.tolist() if given is not None and given.size else None
        sizes = use.array(3)
    rank = x.rank
    if use.attribute("axes") is not None and len(use.attribute("axes")) != rank:
        axes = [k % rank for k in use.attribute("axes")]
        if scales is not None:
            scales = [scales[axes.index(k)] if k in axes else 1.0 for k in range(rank)]
        elif sizes is not None:
            sizes = np.array([sizes[axes.index(k)] if k in axes else 0 for k in range(rank)])
    if scales is None:
        if sizes is None or use.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise RefusedError("scales, or sizes to stretch to", "neither")
        dims = x.dims(7)
        scales = [int(w) / d if w else 1.0 for w, d in zip(sizes.tolist(), dims, strict=True)]
        if x.axis is not None:
            scales[x.axis] = 1.0
    mode = use.attribute("mode", "nearest")
    usual = "half_pixel" if opset >= 11 else "asymmetric"
    where = use.attribute("coordinate_transformation_mode", usual)
    rounding = use.attribute("nearest_mode", "round_prefer_floor")
    factors = [round(s) for s in scales[-2:]]
    whole = list(scales) == [1.0] * (rank - 2) + factors and min(factors) >= 1
    fits = rank == 4 and whole and not use.attribute("antialias", 0)
    if mode == "nearest":
        # With whole factors these meet the same pixels as repeating each does.
        same = (where == "asymmetric" and (rounding == "floor" or opset < 11)) or (
            where in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
            and rounding.startswith("round")
        )
        how = "nearest"
    else:
        same = mode == "linear" and where in ("half_pixel", "pytorch_half_pixel")
        same = same and (where == "half_pixel" or min(x.sample[-2:]) > 1)
        how = "bilinear"
    if not fits or not same:
        raise RefusedError(
            "whole factors of height and width, nearest (asymmetric, floor) or linear (half_pixel)",
            f"scales {list(scales)}, {mode}, {where}, {rounding}"[:160],
        )
    return over_last(use, x, 3, layers.Upsampling2D(use.name(), tuple(factors), how))


def _window(kind: str, axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    def more(d: DescribedLayer) -> dict[str, Any]:
        border = pads(d, "pool_size", axes)
        if kind == "Avg" and any(before != after for before, after in border):
            # Keras' backends do not agree on what a mean takes in behind the last row.
            d.expect(padding="valid")
        size, stride = sizes(d, "pool_size", axes), sizes(d, "strides", axes)
        return {"kernel": size, "stride": stride, "pad": border}

    return more


def _adaptive(axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    return lambda d: {"output_size": sizes(d, "output_size", axes)}


def _whole(d: DescribedLayer, layer: Layer) -> list[Layer]:
    return along(d, layer, bool(d.config["keepdims"]))


def _mean_of_steps(d: DescribedLayer) -> list[Layer]:
    """A layer that goes by a mask, too."""
    axis = 2 if d.config["data_format"] == "channels_first" else 1
    return [layers.Reduce(d.name, "mean", axis, bool(d.config["keepdims"]))]


def _upsampling(d: DescribedLayer) -> dict[str, Any]:
    if d.config["interpolation"] != "bilinear":
        d.expect(interpolation="nearest")
    return {"size": sizes(d, "size", 2), "mode": d.config["interpolation"]}


_KINDS = (
    ("Max", "Max", _write_max_pool, _write_adaptive_max, "GlobalMaxPool"),
    ("Avg", "Average", _write_average_pool, _write_adaptive_mean, "GlobalAveragePool"),
)
"""Our name, Keras', and the forms in ONNX."""


def _codecs(axes: int) -> Iterator[LayerCodec]:
    pooled = KerasClass(more=_adaptive(axes), around=along)
    whole = KerasClass({"keepdims": bool}, around=_whole)
    of_steps = KerasClass(draw=_mean_of_steps, masked=True)
    for ours, theirs, one, adaptive, op in _KINDS:
        of_all = of_steps if (ours, axes) == ("Avg", 1) else whole
        by_window = KerasClass(more=_window(ours, axes), around=along)
        for name, keras, onnx in (
            ("", by_window, one), ("Adaptive", pooled, adaptive),
            ("Global", of_all, _write_global_pool(op)),
        ):  # fmt: skip
            known = {f"{name}{theirs}Pooling{axes}D": keras} if axes < 3 else {}
            yield LayerCodec(kind_of(f"{name}{ours}Pooling", axes), keras=known, onnx=onnx)


_ENLARGED = {"Resize": _read_resize, "Upsample": _read_resize}
_POOLS = {"MaxPool": _read_pool("Max"), "AveragePool": _read_pool("Avg")}

POOLING = (
    *(codec for axes in (1, 2, 3) for codec in _codecs(axes)),
    LayerCodec(
        layers.Upsampling2D,
        keras=KerasClass(more=_upsampling),
        keras_name="UpSampling2D",
        onnx=_write_upsampling,
        operators={**_ENLARGED, **_POOLS},
    ),
)
