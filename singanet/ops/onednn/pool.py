"""Pooling by oneDNN.

Its note of which position held the maximum is the same as NumPy's. A window of nothing but -inf has
the least finite number for its maximum.
"""

from __future__ import annotations

import math

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import pool as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import U8, Algorithm, Arg, Prop, Query, dims
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.descriptors import NotOfferedError
from singanet.ops.window import Window
from singanet.types import Array, Shape

_LEAST = 1
"""Elements from which oneDNN is faster: NumPy's many calls take longer even on few."""

_MAX = int(Algorithm.POOLING_MAX)
_MEAN = int(Algorithm.POOLING_AVG_EXCLUDE_PADDING)
_POSITIONS = 256
"""Kernel positions that oneDNN numbers in a byte, as NumPy's kernel does."""


def _max_pool(
    ops: OneDnnBase, x: Array, window: Window, keep: bool
) -> tuple[Array, Array | None] | None:
    images = ops.channels_last(x)
    y: Array = ops.xp.empty(_outputs(images.shape, window), np.float32)
    where: Array = ops.xp.empty(y.shape, np.uint8)
    given = [images, y, where] if keep else [images, y]
    if not y.size or not ops.runs(_max_forward, (images.shape, window, keep), *given):
        return None
    ops.show_nan(y, images)
    return y.transpose(0, 3, 1, 2), where if keep else None


def _max_pool_backward(
    ops: OneDnnBase, dy: Array, where: Array, x_shape: Shape, window: Window
) -> Array | None:
    n, c, h, w = x_shape
    dx: Array = ops.xp.empty((n, h, w, c), np.float32)
    slopes = ops.channels_last(dy)
    done = dx.size and ops.runs(_max_backward, (dx.shape, window), dx, slopes, where)
    return dx.transpose(0, 3, 1, 2) if done else None


def _avg_pool(ops: OneDnnBase, x: Array, window: Window) -> Array | None:
    images = ops.channels_last(x)
    y: Array = ops.xp.empty(_outputs(images.shape, window), np.float32)
    done = y.size and ops.runs(_mean_forward, (images.shape, window), images, y)
    return y.transpose(0, 3, 1, 2) if done else None


def _avg_pool_backward(ops: OneDnnBase, dy: Array, x_shape: Shape, window: Window) -> Array | None:
    n, c, h, w = x_shape
    dx: Array = ops.xp.empty((n, h, w, c), np.float32)
    slopes = ops.channels_last(dy)
    done = dx.size and ops.runs(_mean_backward, (dx.shape, window), dx, slopes)
    return dx.transpose(0, 3, 1, 2) if done else None


def _has_few_positions(ops: OneDnnBase, x: Array, window: Window, keep: bool) -> bool:
    return math.prod(window.kernel) <= _POSITIONS and ops.serves(_LEAST, x)


def _is_noted(ops: OneDnnBase, dy: Array, where: Array, x_shape: Shape, window: Window) -> bool:
    return where.dtype == np.uint8 and ops.serves(_LEAST, dy)


max_pool = in_order(Route("onednn", _max_pool, _has_few_positions), last=by_numpy.max_pool)

max_pool_backward = in_order(
    Route("onednn", _max_pool_backward, _is_noted), last=by_numpy.max_pool_backward
)

avg_pool = in_order(
    Route("onednn", _avg_pool, lambda ops, x, window: ops.serves(_LEAST, x)),
    last=by_numpy.avg_pool,
)

avg_pool_backward = in_order(
    Route("onednn", _avg_pool_backward, lambda ops, dy, *_: ops.serves(_LEAST, dy)),
    last=by_numpy.avg_pool_backward,
)


def _outputs(images: Shape, window: Window) -> Shape:
    n, h, w, c = images
    return (n, *window.out_size(h, w), c)


def _forward_desc(
    build: Builder, images: Shape, window: Window, algorithm: int, keep: bool
) -> object:
    prop = Prop.FORWARD_TRAINING if keep else Prop.FORWARD_INFERENCE
    x, y = build.images(images), build.images(_outputs(images, window))
    geometry = _geometry(window)
    return build.primitive_desc("pooling_forward", int(prop), algorithm, x, y, *geometry)


def _geometry(window: Window) -> list[object]:
    """Strides, kernel, dilations (0 for none) and both paddings."""
    (top, bottom), (left, right) = window.pads
    if any(max(pads) >= size for pads, size in zip(window.pads, window.extent, strict=True)):
        # Windows that meet nothing but padding have no mean, and no maximum.
        raise NotOfferedError("pooling")
    spread = (window.dilation[0] - 1, window.dilation[1] - 1)
    sizes = [window.stride, window.kernel, spread, (top, left), (bottom, right)]
    return [dims(size) for size in sizes]


def _max_forward(build: Builder, images: Shape, window: Window, keep: bool) -> None:
    desc = _forward_desc(build, images, window, _MAX, keep)
    out = _outputs(images, window)
    memories = {
        Arg.SRC: build.operand(0, build.images(images)),
        Arg.DST: build.operand(1, build.images(out)),
    }
    if keep:
        memories[Arg.WORKSPACE] = build.operand(2, _where(build, desc, out))
    build.stage(desc, memories)


def _max_backward(build: Builder, images: Shape, window: Window) -> None:
    hint = _forward_desc(build, images, window, _MAX, keep=True)
    out = _outputs(images, window)
    dx, dy = build.images(images), build.images(out)
    desc = build.primitive_desc("pooling_backward", _MAX, dx, dy, *_geometry(window), hint)
    memories = {
        Arg.DIFF_SRC: build.operand(0, dx),
        Arg.DIFF_DST: build.operand(1, dy),
        Arg.WORKSPACE: build.operand(2, _where(build, desc, out)),
    }
    build.stage(desc, memories)


def _where(build: Builder, desc: object, outputs: Shape) -> object:
    """The layout of the noted positions, where it is NumPy's: a byte each, channels last."""
    where = build.images(outputs, U8)
    if not build.same(where, build.layout(desc, Query.WORKSPACE)):
        raise NotOfferedError("max pooling")
    return where


def _mean_forward(build: Builder, images: Shape, window: Window) -> None:
    desc = _forward_desc(build, images, window, _MEAN, keep=False)
    x = build.operand(0, build.images(images))
    y = build.operand(1, build.images(_outputs(images, window)))
    build.stage(desc, {Arg.SRC: x, Arg.DST: y})


def _mean_backward(build: Builder, images: Shape, window: Window) -> None:
    hint = _forward_desc(build, images, window, _MEAN, keep=True)
    dx, dy = build.images(images), build.images(_outputs(images, window))
    desc = build.primitive_desc("pooling_backward", _MEAN, dx, dy, *_geometry(window), hint)
    build.stage(desc, {Arg.DIFF_SRC: build.operand(0, dx), Arg.DIFF_DST: build.operand(1, dy)})
