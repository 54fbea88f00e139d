"""Pool by oneDNN.

Its positions of maxima equal NumPy's. A window of -inf alone has the least finite number as its
maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm import kernels as compiled
from singanet.ops.numpy import pool as by_numpy
from singanet.ops.numpy.windows import channels_first
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import U8, Algorithm, Arg, Prop, Query, dims
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.ops.window import Window
from singanet.types import Array, Shape

_LEAST = 1
"""Elements from which oneDNN is faster: NumPy's many calls take longer even on few."""

_MAX = int(Algorithm.POOLING_MAX)
_MEANS = (
    int(Algorithm.POOLING_AVG_EXCLUDE_PADDING),
    int(Algorithm.POOLING_AVG_INCLUDE_PADDING),
)


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
    return channels_first(y), where if keep else None


def _max_pool_backward(
    ops: OneDnnBase, dy: Array, where: Array, x_shape: Shape, window: Window
) -> Array | None:
    n, c, *size = x_shape
    dx: Array = ops.xp.empty((n, *size, c), np.float32)
    slopes = ops.channels_last(dy)
    done = dx.size and ops.runs(_max_backward, (dx.shape, window), dx, slopes, where)
    return channels_first(dx) if done else None


def _avg_pool(ops: OneDnnBase, x: Array, window: Window, count_pads: bool = False) -> Array | None:
    images = ops.channels_last(x)
    y: Array = ops.xp.empty(_outputs(images.shape, window), np.float32)
    done = y.size and ops.runs(_mean_forward, (images.shape, window, count_pads), images, y)
    return channels_first(y) if done else None


def _avg_pool_backward(
    ops: OneDnnBase, dy: Array, x_shape: Shape, window: Window, count_pads: bool = False
) -> Array | None:
    n, c, *size = x_shape
    dx: Array = ops.xp.empty((n, *size, c), np.float32)
    slopes = ops.channels_last(dy)
    done = dx.size and ops.runs(_mean_backward, (dx.shape, window, count_pads), dx, slopes)
    return channels_first(dx) if done else None


def _has_few_positions(ops: OneDnnBase, x: Array, window: Window, keep: bool) -> bool:
    return math.prod(window.kernel) <= compiled.POSITIONS and ops.serves(_LEAST, x)


def _is_noted(ops: OneDnnBase, dy: Array, where: Array, x_shape: Shape, window: Window) -> bool:
    return where.dtype == np.uint8 and ops.serves(_LEAST, dy)


def _mean_fits(ops: OneDnnBase, x: Array, window: Window, count_pads: bool = False) -> bool:
    # oneDNN divides by the whole window, also by its part beyond the padding.
    return not (count_pads and window.ceil) and ops.serves(_LEAST, x)


def _mean_backward_fits(
    ops: OneDnnBase, dy: Array, x_shape: Shape, window: Window, count_pads: bool = False
) -> bool:
    return _mean_fits(ops, dy, window, count_pads)


max_pool = in_order(
    compiled.max_pool, Route("onednn", _max_pool, _has_few_positions), last=by_numpy.max_pool
)

max_pool_backward = in_order(
    Route("onednn", _max_pool_backward, _is_noted), last=by_numpy.max_pool_backward
)

avg_pool = in_order(Route("onednn", _avg_pool, _mean_fits), last=by_numpy.avg_pool)

avg_pool_backward = in_order(
    Route("onednn", _avg_pool_backward, _mean_backward_fits), last=by_numpy.avg_pool_backward
)


def _outputs(images: Shape, window: Window) -> Shape:
    n, *size, c = images
    return (n, *window._out_size(*size), c)


def _forward_desc(
    build: Builder,
    images: Shape,
    window: Window,
    algorithm: int,
    keep: bool,
    layouts: Sequence[Any],
) -> object:
    prop = Prop.FORWARD_TRAINING if keep else Prop.FORWARD_INFERENCE
    geometry = _geometry(window, images)
    return build.primitive_desc("pooling_forward", int(prop), algorithm, *layouts, *geometry)


def _alike(build: Builder, images: Shape, window: Window) -> tuple[list[Any], list[Any]]:
    """Describe images and outputs, the operands 0 and 1, as stored and in the kernel's dtype."""
    shapes, common = (images, _outputs(images, window)), build.common_kind(0, 1)
    plain = [build.images(shape, build.kind(number)) for number, shape in enumerate(shapes)]
    return plain, [build.images(shape, common) for shape in shapes]


def _geometry(window: Window, images: Shape) -> list[object]:
    """Return strides, kernel, dilations (0 for none) and both paddings."""
    pads = window.reach(*images[1:-1])
    if any(max(ends) >= size for ends, size in zip(pads, window.extent, strict=True)):
        # Windows of padding alone have no mean and no maximum.
        raise NotOfferedError("pooling")
    spread = tuple(d - 1 for d in window.dilation)
    return [dims(size) for size in (window.stride, window.kernel, spread, *zip(*pads, strict=True))]


def _max_forward(build: Builder, images: Shape, window: Window, keep: bool) -> None:
    plain, made = _alike(build, images, window)
    desc, where = _forward_desc(build, images, window, _MAX, keep, made), {}
    if keep:
        where[Arg.WORKSPACE] = build.operand(2, _where(build, desc, _outputs(images, window)))
    build.stage_on(desc, (Arg.SRC, Arg.DST), plain, made, others=where)


def _max_backward(build: Builder, images: Shape, window: Window) -> None:
    plain, made = _alike(build, images, window)
    hint = _forward_desc(build, images, window, _MAX, True, made)
    geometry = _geometry(window, images)
    desc = build.primitive_desc("pooling_backward", _MAX, *made, *geometry, hint)
    where = {Arg.WORKSPACE: build.operand(2, _where(build, desc, _outputs(images, window)))}
    build.stage_on(desc, (Arg.DIFF_SRC, Arg.DIFF_DST), plain, made, others=where)


def _where(build: Builder, desc: object, outputs: Shape) -> object:
    """Describe the positions, if their layout is NumPy's: a byte each, channels last."""
    where = build.images(outputs, U8)
    if not build.same(where, build.layout(desc, Query.WORKSPACE)):
        raise NotOfferedError("max pooling")
    return where


def _mean_forward(build: Builder, images: Shape, window: Window, count_pads: bool) -> None:
    plain, made = _alike(build, images, window)
    desc = _forward_desc(build, images, window, _MEANS[count_pads], False, made)
    build.stage_on(desc, (Arg.SRC, Arg.DST), plain, made)


def _mean_backward(build: Builder, images: Shape, window: Window, count_pads: bool) -> None:
    algorithm, (plain, made) = _MEANS[count_pads], _alike(build, images, window)
    hint = _forward_desc(build, images, window, algorithm, True, made)
    geometry = _geometry(window, images)
    desc = build.primitive_desc("pooling_backward", algorithm, *made, *geometry, hint)
    build.stage_on(desc, (Arg.DIFF_SRC, Arg.DIFF_DST), plain, made)
