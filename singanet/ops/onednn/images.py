"""Images brought into channels-last memory by oneDNN's reorder, which uses all threads.

Every image kernel takes its images through this, NumPy's too.
"""

from __future__ import annotations

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import windows as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 1 << 13


def _is_worth_it(ops: OneDnnBase, x: Array) -> bool:
    # With one channel, or one pixel, both orders are the same memory.
    large = x.size >= _LEAST and x.flags.c_contiguous and x.ndim == 4 and 1 < x.shape[1] < x.size
    return large and ops.serves(_LEAST, x)


def _channels_last(ops: OneDnnBase, x: Array) -> Array | None:
    n, c, h, w = x.shape
    y: Array = ops.xp.empty((n, h, w, c), np.float32)
    return y if ops.runs(_reorder, (n, c, h, w), x, y) else None


channels_last = in_order(Route("onednn", _channels_last, _is_worth_it), last=by_numpy.channels_last)


def images_of(ops: OneDnnBase, x: Array) -> Array:
    """``x`` (N, C, H, W) channels-last; (N, C) as images of one pixel."""
    return ops.ordered(x)[:, None, None] if x.ndim == 2 else ops.channels_last(x)


def like(x: Array, images: Array) -> Array:
    """The channels-last ``images`` in the form of ``x``."""
    return images[:, 0, 0] if x.ndim == 2 else images.transpose(0, 3, 1, 2)


def _reorder(build: Builder, n: int, c: int, h: int, w: int) -> None:
    shape: Shape = (n, h, w, c)
    source = build.rows((n, c, h, w), build.kind(0))
    target = build.images(shape, build.kind(1))
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))
