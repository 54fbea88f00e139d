"""Pooling over windows of images and volumes, and over all positions of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.lanes import SWEEP
from singanet.ops.numpy.windows import blocks, channels_first, meetings, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape

_SUMMED_AT_ONCE = 1 << 8
"""Positions whose sum in one go is exact enough."""

_BLOCK_BYTES = 1 << 19
"""Of the images; a block's outputs are gone over once for each kernel position."""


@kernel(half="native")
def max_pool(ops: Ops, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
    xp, n, c, size = ops.xp, x.shape[0], x.shape[1], x.shape[2:]
    out = window.out_size(*size)
    y: Array = xp.full((n, *out, c), float("-inf"), x.dtype)
    where: Array | None = None
    if keep:
        where = xp.zeros(y.shape, np.min_scalar_type(prod(window.kernel) - 1))
    for samples in _sample_blocks(ops, x.shape, x.itemsize):
        rows = ops.channels_last(x[samples])
        for k, pixels, outputs in meetings(window, size, out):
            best, given = y[samples][outputs], rows[pixels]
            if where is not None and k:
                # The positions rise, so the largest that was better than all before wins;
                # selecting with a mask would take five times as long.
                better = xp.multiply(xp.greater(given, best), k, dtype=where.dtype)
                xp.maximum(where[samples][outputs], better, out=where[samples][outputs])
            xp.maximum(best, given, out=best)
    return channels_first(y), where


@kernel(half="lift")
def max_pool_backward(ops: Ops, dy: Array, where: Array, x_shape: Shape, window: Window) -> Array:
    xp, n, c, size = ops.xp, x_shape[0], x_shape[1], x_shape[2:]
    disjoint = all(s >= k for s, k in zip(window.stride, window.extent, strict=True))
    dx: Array = xp.zeros((n, *size, c), dy.dtype)
    for samples in _sample_blocks(ops, x_shape, dy.itemsize):
        rows, target = ops.channels_last(dy[samples]), dx[samples]
        for k, pixels, outputs in meetings(window, size, dy.shape[2:]):
            mine = xp.equal(where[samples][outputs], k)
            if disjoint:
                xp.multiply(rows[outputs], mine, out=target[pixels])
            else:
                target[pixels] += xp.multiply(rows[outputs], mine)
    return channels_first(dx)


@kernel(half="lift")
def avg_pool(ops: Ops, x: Array, window: Window, count_pads: bool = False) -> Array:
    xp, n, c, size = ops.xp, x.shape[0], x.shape[1], x.shape[2:]
    out = window.out_size(*size)
    y: Array = xp.zeros((n, *out, c), x.dtype)
    counts = _counts(xp, x.shape, window, count_pads, x.dtype)
    for samples in _sample_blocks(ops, x.shape, x.itemsize):
        rows = ops.channels_last(x[samples])
        for _, pixels, outputs in meetings(window, size, out):
            total = y[samples][outputs]
            xp.add(total, rows[pixels], out=total)
        xp.divide(y[samples], counts, out=y[samples])
    return channels_first(y)


@kernel(half="lift")
def avg_pool_backward(
    ops: Ops, dy: Array, x_shape: Shape, window: Window, count_pads: bool = False
) -> Array:
    xp, n, c, size = ops.xp, x_shape[0], x_shape[1], x_shape[2:]
    counts = _counts(xp, x_shape, window, count_pads, dy.dtype)
    dx: Array = xp.zeros((n, *size, c), dy.dtype)
    for samples in _sample_blocks(ops, x_shape, dy.itemsize):
        share = xp.divide(ops.channels_last(dy[samples]), counts)
        for _, pixels, outputs in meetings(window, size, dy.shape[2:]):
            dx[samples][pixels] += share[outputs]
    return channels_first(dx)


@kernel(half="lift")
def global_avg_pool(ops: Ops, x: Array) -> Array:
    positions = prod(x.shape[2:])
    if ops.prepared is not None and x.size and positions <= _SUMMED_AT_ONCE:
        return _product_with_shares(ops, x, positions)
    # An axis at a time keeps the partial sums short, which keeps float32 exact enough.
    total = x
    while total.ndim > 2:
        total = total.sum(axis=-1)
    return total / prod(x.shape[2:])


def _product_with_shares(ops: Ops, x: Array, positions: int) -> Array:
    """The means by one call: NumPy sums short rows of an inner axis one by one."""
    n, c = x.shape[:2]
    share = ops.xp.full((1, positions), 1 / positions, x.dtype)
    if x.flags.c_contiguous:
        return ops.xp.matmul(x.reshape(n, c, positions), share.T).reshape(n, c)
    rows = x.transpose(0, *range(2, x.ndim), 1).reshape(n, positions, c)
    return ops.xp.matmul(share, rows).reshape(n, c)


@kernel(half="native")
def global_avg_pool_backward(ops: Ops, dy: Array, x_shape: Shape) -> Array:
    share = dy / prod(x_shape[2:])
    full = ops.xp.empty((x_shape[0], prod(x_shape[2:]), x_shape[1]), dy.dtype)
    ops.xp.copyto(full, share[:, None])
    return _channels_first(full, x_shape)


@kernel(half="native")
def global_max_pool(ops: Ops, x: Array, keep: bool) -> tuple[Array, Array | None]:
    flat = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    return flat.max(axis=2), flat.argmax(axis=2) if keep else None


@kernel(half="native")
def global_max_pool_backward(ops: Ops, dy: Array, where: Array, x_shape: Shape) -> Array:
    positions = ops.xp.arange(prod(x_shape[2:]))[:, None]
    full = ops.xp.where(positions == where[:, None], dy[:, None], 0)
    return _channels_first(full, x_shape)


def _sample_blocks(ops: Ops, x_shape: Shape, itemsize: int) -> Iterator[slice]:
    """Slices of samples, lane by lane, whose values fit a block."""
    scratch, size = scratch_bytes(ops, _BLOCK_BYTES), prod(x_shape[1:])
    for lane in ops.lanes(x_shape[0], 2 * SWEEP * x_shape[0] * size):
        for samples, _ in blocks(lane.stop - lane.start, 1, size * itemsize, scratch):
            yield slice(lane.start + samples.start, lane.start + samples.stop)


def _counts(xp: Any, x_shape: Shape, window: Window, count_pads: bool, dtype: Any) -> Array:
    """How many positions of each window count, (..., 1); at least 1."""
    size, sides = x_shape[2:], []
    for k, out in enumerate(window.out_size(*size)):
        before, after = window.pads[k]
        first = np.arange(out) * window.stride[k] - before
        position = first[:, None] + np.arange(window.kernel[k]) * window.dilation[k]
        low, high = (-before, size[k] + after) if count_pads else (0, size[k])
        sides.append(((position >= low) & (position < high)).sum(axis=1))
    counts = np.maximum(reduce(np.multiply.outer, sides), 1)[..., None]
    return xp.asarray(counts.astype(dtype))


def _channels_first(full: Array, x_shape: Shape) -> Array:
    """(N, positions, C) as an (N, C, ...) view, in the memory order of the image kernels."""
    n, c, *sizes = x_shape
    return channels_first(full.reshape(n, *sizes, c))
