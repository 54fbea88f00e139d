"""Convolutions by oneDNN's own kernels, with weights in the layout that they like best.

The weight is reordered at every call: it changes at every step, and is small.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.numpy.windows import channels_first
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import F32, Algorithm, Arg, Prop, Query, dims
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.ops.window import Window
from singanet.types import Array, Shape

_DIRECT = int(Algorithm.CONVOLUTION_DIRECT)
_TRAINING = int(Prop.FORWARD_TRAINING)


def forward(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    own: bool = False,
) -> Array | None:
    """See `Ops.conv2d`; the bias is added by the same kernel.

    ``own`` brings images to the layout that oneDNN likes best, and back.
    """
    images = ops.channels_last(x)
    y: Array = ops.xp.empty((len(x), *window._out_size(*x.shape[2:]), len(weight)), np.float32)
    key = (images.shape, y.shape, window, bias is not None, own)
    rest = [ops.ordered(array) for array in (weight, bias) if array is not None]
    done = y.size and ops.runs(forward_plan, key, images, y, *rest, passes=passes_over(ops, weight))
    return channels_first(y) if done else None


def data(
    ops: OneDnnBase,
    dy: Array,
    weight: Array,
    x_shape: Shape,
    window: Window,
    own: bool = False,
) -> Array | None:
    """See `Ops.conv2d_backward_data`; ``own`` as for `forward`."""
    n, c, *size = x_shape
    slopes = ops.channels_last(dy)
    dx: Array = ops.xp.empty((n, *size, c), np.float32)
    key = (dx.shape, slopes.shape, window, own)
    passes, kernels = passes_over(ops, weight), ops.ordered(weight)
    done = dx.size and ops.runs(_backward_data, key, dx, slopes, kernels, passes=passes)
    return channels_first(dx) if done else None


def weights(
    ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    dw: Array = ops.xp.empty(weight_shape, np.float32)
    key = (images.shape, slopes.shape, window)
    passes = passes_over(ops, dw)
    done = dw.size and ops.runs(_backward_weights, key, images, slopes, dw, passes=passes)
    return dw if done else None


def passes_over(ops: OneDnnBase, weight: Array) -> int:
    """Multiply-adds for each value of the images, in what they take of the time of a pass."""
    return ops.passes(weight.size // weight.shape[1])


def kernel_shape(images: Shape, outputs: Shape, window: Window) -> Shape:
    """oneDNN's: with groups as an axis of their own."""
    groups = window.groups
    each = (outputs[-1] // groups, images[-1] // groups, *window.kernel)
    return (groups, *each) if groups > 1 else each


def _geometry(window: Window) -> list[object]:
    """Strides, dilations (0 for none) and both paddings."""
    if any(max(pads) >= size for pads, size in zip(window.pads, window.extent, strict=True)):
        # Windows that meet nothing but padding: oneDNN promises nothing about them.
        raise NotOfferedError("convolution")
    spread = tuple(d - 1 for d in window.dilation)
    return [dims(each) for each in (window.stride, spread, *zip(*window.pads, strict=True))]


def forward_desc(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    bias: bool,
    own: bool = False,
    made: int = F32,
    attributes: Any = None,
) -> object:
    """The forward convolution, with weights as oneDNN likes them, and with ``own`` images too.

    ``made`` is the type of the outputs.
    """
    weight = build.free(kernel_shape(images, outputs, window), build.factors)
    b = build.rows(outputs[-1:]) if bias else None
    x, y = _images(build, images, build.factors, own), _images(build, outputs, made, own)
    geometry = _geometry(window)
    given = (_TRAINING, _DIRECT, x, weight, b, y, *geometry)
    return build.primitive_desc("convolution_forward", *given, attributes=attributes)


def _images(build: Builder, nhwc: Shape, kind: int, own: bool) -> Any:
    n, *size, c = nhwc
    return build.free((n, c, *size), kind) if own else build.images(nhwc, kind)


def forward_plan(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    bias: bool,
    own: bool = False,
) -> None:
    """Operands: images, outputs, the weight, the bias."""
    made = build.kind(1)
    desc = forward_desc(build, images, outputs, window, bias, own, made)
    plain = build.rows(kernel_shape(images, outputs, window))
    y, bring = build.packed_output(1, build.images(outputs, made), build.layout(desc, Query.DST))
    x = build.images(images, build.factor(0))
    memories = {
        Arg.SRC: build.packed_input(0, x, build.layout(desc, Query.SRC)),
        Arg.DST: y,
        Arg.WEIGHTS: build.packed_input(2, plain, build.layout(desc, Query.WEIGHTS)),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, build.rows(outputs[-1:]))
    build.stage(desc, memories)
    bring()


def _backward_data(
    build: Builder, images: Shape, outputs: Shape, window: Window, own: bool
) -> None:
    hint = forward_desc(build, images, outputs, window, bias=False, own=own)
    shape = kernel_shape(images, outputs, window)
    made = build.kind(0)
    x, y = _images(build, images, made, own), _images(build, outputs, build.factors, own)
    weight = build.free(shape, build.factors)
    geometry = _geometry(window)
    desc = build.primitive_desc("convolution_backward_data", _DIRECT, x, weight, y, *geometry, hint)
    wanted = [build.layout(desc, of) for of in (Query.DIFF_SRC, Query.DIFF_DST, Query.WEIGHTS)]
    dx, bring = build.packed_output(0, build.images(images, made), wanted[0])
    memories = {
        Arg.DIFF_SRC: dx,
        Arg.DIFF_DST: build.packed_input(1, build.images(outputs, build.factor(1)), wanted[1]),
        Arg.WEIGHTS: build.packed_input(2, build.rows(shape), wanted[2]),
    }
    build.stage(desc, memories)
    bring()


def _backward_weights(build: Builder, images: Shape, outputs: Shape, window: Window) -> None:
    hint = forward_desc(build, images, outputs, window, bias=False)
    shape = kernel_shape(images, outputs, window)
    x, y = build.images(images, build.factors), build.images(outputs, build.factors)
    weight = build.free(shape)
    desc = build.primitive_desc(
        "convolution_backward_weights", _DIRECT, x, weight, None, y, *_geometry(window), hint
    )
    made = build.layout(desc, Query.DIFF_WEIGHTS)
    packed, bring = build.packed_output(2, build.rows(shape), made)
    memories = {
        Arg.SRC: build.packed_input(0, build.images(images, build.factor(0)), x),
        Arg.DIFF_DST: build.packed_input(1, build.images(outputs, build.factor(1)), y),
        Arg.DIFF_WEIGHTS: packed,
    }
    build.stage(desc, memories)
    bring()
