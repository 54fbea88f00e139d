"""Convolutions, pooling and resizing of images and sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet import layers
from singanet.onnx.shaping import over_last
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import STEPS, RefusedError, Tensor
from singanet.types import Array

Pads = list[tuple[int, int]]


def _ints(use: Use, name: str, count: int, usual: int = 1, least: int = 1) -> list[int]:
    found = use.attribute(name) or [usual] * count
    if len(found) != count or min(found) < least or max(found) > 1 << 20:
        raise RefusedError(f"{name} for {count} axes, from {least}", f"{found}"[:60])
    return list(found)


def _pads(
    use: Use, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    spread: Sequence[int],
) -> Pads:  # fmt: skip
    """What is put before and after each axis: by the attribute, or so that the size is kept."""
    count, mode = len(sizes), use.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return [(0, 0)] * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, k, s, d in zip(sizes, kernel, stride, spread, strict=True):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            less, more = total // 2, total - total // 2
            found.append((less, more) if mode == "SAME_UPPER" else (more, less))
        return found
    given = _ints(use, "pads", 2 * count, 0, 0)
    return list(zip(given[:count], given[count:], strict=True))


def _plain(values: Sequence[Any]) -> Any:
    """Of an image a pair, of a sequence a number."""
    return tuple(values) if len(values) > 1 else values[0]


def _kind(name: str, axes: int, more: str = "") -> Any:
    """The class of layers over so many axes. Errors: that there is none."""
    kind = getattr(layers, f"{name}{axes}D{more}", None)
    if kind is None:
        raise RefusedError("sequences or images", f"{axes} axes behind the channels")
    return kind


def _filters(use: Use) -> tuple[Tensor, Array, Array | None]:
    x, weight = use.tensor(), use.needed(1)
    if weight.ndim != x.rank or x.rank < 3:
        raise RefusedError("kernels of as many axes as their input", f"{weight.ndim}, {x.rank}")
    return x, weight, use.array(2)


def _conv(use: Use) -> Tensor:
    x, weight, bias = _filters(use)
    axes = weight.ndim - 2
    kernel, groups = list(weight.shape[2:]), use.attribute("group", 1)
    if use.attribute("kernel_shape", kernel) != kernel:
        raise RefusedError(f"kernel_shape {kernel}", f"{use.attribute('kernel_shape')}"[:60])
    stride, spread = _ints(use, "strides", axes), _ints(use, "dilations", axes)
    channels = x.sample[-axes - 1]
    if groups < 1 or groups * weight.shape[1] != channels:
        raise RefusedError(f"{channels} channels in {groups} groups", f"{weight.shape}")
    pads = _pads(use, x.sample[-axes:], kernel, stride, spread)
    given: dict[str, Any] = {
        "kernel": _plain(kernel), "stride": _plain(stride), "pad": _plain(pads),
        "dilation": _plain(spread), "use_bias": bias is not None,
    }  # fmt: skip
    name = use.name(1)
    layer: Any
    if groups == channels > 1 and axes == 2:
        layer = layers.DepthwiseConv2D(name, depth_multiplier=len(weight) // channels, **given)
    else:
        layer = _kind("Conv", axes)(name, len(weight), groups=groups, **given)
    if axes == 1 and x.sample[-1] == -1 and any(layer.window.out_size(n) != (n,) for n in STEPS):
        raise RefusedError("as many steps as come in, where they may be any number", "others")
    y = over_last(use, x, axes + 1, layer)
    use.fill(layer, {"weight": weight, "bias": bias})
    return y


def _conv_transpose(use: Use) -> Tensor:
    x, weight, bias = _filters(use)
    axes, groups = weight.ndim - 2, use.attribute("group", 1)
    kernel = list(weight.shape[2:])
    stride, spread = _ints(use, "strides", axes), _ints(use, "dilations", axes)
    extra = _ints(use, "output_padding", axes, 0, 0)
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
        pads = _pads(use, sizes, kernel, stride, spread)
    if any(e >= s for e, s in zip(extra, stride, strict=True)):
        raise RefusedError("output_padding below the strides", f"{extra}")
    # What the layer would have to leave out unevenly is cut off behind it, or put there.
    inside = [max(min(p), 0) for p in pads]
    layer = _kind("Conv", axes, "Transpose")(
        use.name(1), weight.shape[1] * groups, _plain(kernel), _plain(stride),
        use_bias=bias is not None, pad=_plain(inside),
        output_padding=_plain(extra), dilation=_plain(spread), groups=groups,
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


def _pool(kind: str) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        kernel = list(use.attribute("kernel_shape"))
        axes = len(kernel)
        if x.rank != axes + 2:
            raise RefusedError("a kernel for each axis behind the channels", f"{kernel}")
        stride, spread = _ints(use, "strides", axes), _ints(use, "dilations", axes)
        given: dict[str, Any] = {"ceil_mode": bool(use.attribute("ceil_mode", 0))}
        if kind == "Avg":
            given["count_include_pad"] = bool(use.attribute("count_include_pad", 0))
            if max(spread) > 1:
                raise RefusedError("windows without gaps", f"dilations {spread}")
        else:
            if use.attribute("storage_order", 0):
                raise RefusedError("storage_order 0", "another")
        pads = _pads(use, x.sample[-axes:], kernel, stride, spread)
        sample = x.sample
        while axes > 2 and kernel[-2:] == stride[-2:] == [1, 1] and not any(map(any, pads[-2:])):
            # Where windows are one pixel wide two axes may as well be one.
            x = x.like(use.reshaped(x, (*x.sample[:-2], x.sample[-2] * x.sample[-1])))
            kernel, stride, spread = (each[:-1] for each in (kernel, stride, spread))
            pads = pads[:-1]
            axes -= 1
        if kind == "Max":
            given["dilation"] = _plain(spread)
        layer = _kind(f"{kind}Pooling", axes)(
            use.name(), _plain(kernel), _plain(stride), pad=_plain(pads), **given
        )
        y = over_last(use, x, axes + 1, layer)
        if len(x.sample) == len(sample):
            return y
        return y.like(
            use.reshaped(y, (*y.sample[: len(x.sample) - 1], *sample[len(x.sample) - 1 :]))
        )

    return convert


def _resize(use: Use) -> Tensor:
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


SPATIAL: Mapping[str, Converter] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose,
    "MaxPool": _pool("Max"), "AveragePool": _pool("Avg"),
    "Resize": _resize, "Upsample": _resize,
}  # fmt: skip
