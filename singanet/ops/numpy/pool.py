"""Pool, upsample and pad by NumPy.

x is (N, C, H, W), y and dy (N, C, H·fh, W·fw) for the factors (fh, fw).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np

from singanet.base.heap import steps
from singanet.ops.blas import product
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.linear import SWEEP
from singanet.ops.numpy.windows import blocks, channels_first, meetings, scratch_bytes
from singanet.ops.window import Pair, Window
from singanet.types import Array, Shape

_SUMMED_AT_ONCE = 1 << 8
"""Positions whose sum in one go is exact enough."""

_BLOCK_BYTES = 1 << 19
"""Bytes of a block of images; its outputs are processed once for each kernel position."""


@kernel(half="native")
def max_pool(ops: Ops, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
    xp, n, c, size = ops.xp, x.shape[0], x.shape[1], x.shape[2:]
    out = window._out_size(*size)
    y: Array = xp.full((n, *out, c), float("-inf"), x.dtype)
    where: Array | None = None
    if keep:
        where = xp.zeros(y.shape, np.min_scalar_type(prod(window.kernel) - 1))
    for samples in _sample_blocks(ops, x.shape, x.itemsize):
        rows = ops.channels_last(x[samples])
        for k, pixels, outputs in meetings(window, size, out):
            best, given = y[samples][outputs], rows[pixels]
            if where is not None and k:
                # Positions ascend, so the last improvement wins; a masked selection would take five
                # times as long.
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
    out = window._out_size(*size)
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
    # One axis at a time makes short partial sums, exact enough in float32.
    total = x
    while total.ndim > 2:
        total = total.sum(axis=-1)
    return total / prod(x.shape[2:])


def _product_with_shares(ops: Ops, x: Array, positions: int) -> Array:
    """Compute means by one product: NumPy sums short rows of an inner axis one by one."""
    n, c = x.shape[:2]
    share = ops.xp.full((1, positions), 1 / positions, x.dtype)
    if x.flags.c_contiguous:
        return product(ops.xp, x.reshape(n, c, positions), share.T).reshape(n, c)
    rows = x.transpose(0, *range(2, x.ndim), 1).reshape(n, positions, c)
    return product(ops.xp, share, rows).reshape(n, c)


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
    """Yield slices of samples, lane by lane, whose values fit in a block."""
    scratch, size = scratch_bytes(ops, _BLOCK_BYTES), prod(x_shape[1:])
    for lane in ops.lanes(x_shape[0], 2 * SWEEP * x_shape[0] * size):
        for samples, _ in blocks(lane.stop - lane.start, 1, size * itemsize, scratch):
            yield slice(lane.start + samples.start, lane.start + samples.stop)


def _counts(xp: Any, x_shape: Shape, window: Window, count_pads: bool, dtype: Any) -> Array:
    """Return the number of counted positions of each window, (..., 1); at least 1."""
    size, sides = x_shape[2:], []
    for k, out in enumerate(window._out_size(*size)):
        before, after = window.pads[k]
        first = np.arange(out) * window.stride[k] - before
        position = first[:, None] + np.arange(window.kernel[k]) * window.dilation[k]
        low, high = (-before, size[k] + after) if count_pads else (0, size[k])
        sides.append(((position >= low) & (position < high)).sum(axis=1))
    counts = np.maximum(reduce(np.multiply.outer, sides), 1)[..., None]
    return xp.asarray(counts.astype(dtype))


def _channels_first(full: Array, x_shape: Shape) -> Array:
    """Return (N, positions, C) as an (N, C, ...) view, in the memory order of the image kernels."""
    n, c, *sizes = x_shape
    return channels_first(full.reshape(n, *sizes, c))


@kernel(half="native")
def upsample_nearest(ops: Ops, x: Array, factors: Pair) -> Array:
    n, c, h, w = x.shape
    y: Array = ops.xp.empty((n, c, h, factors[0], w, factors[1]), x.dtype)
    ops.xp.copyto(y, x[:, :, :, None, :, None])
    return y.reshape(n, c, h * factors[0], w * factors[1])


@kernel(half="lift")
def upsample_nearest_backward(ops: Ops, dy: Array, factors: Pair) -> Array:
    n, c, h, w = dy.shape
    blocks = dy.reshape(n, c, h // factors[0], factors[0], w // factors[1], factors[1])
    return blocks.sum(axis=5).sum(axis=3)


@kernel(half="lift")
def upsample_bilinear(ops: Ops, x: Array, factors: Pair) -> Array:
    return _interpolated(ops, _interpolated(ops, x, 2, factors[0]), 3, factors[1])


@kernel(half="lift")
def upsample_bilinear_backward(ops: Ops, dy: Array, factors: Pair) -> Array:
    return _gathered(ops, _gathered(ops, dy, 3, factors[1]), 2, factors[0])


def _interpolated(ops: Ops, x: Array, axis: int, factor: int) -> Array:
    rows = x.swapaxes(axis, -1)
    size = rows.shape[-1]
    bordered = ops.xp.concatenate([rows[..., :1], rows, rows[..., -1:]], axis=-1)
    y: Array = ops.xp.empty((*rows.shape, factor), x.dtype)
    for phase in range(factor):
        first, share = _neighbours(phase, factor)
        y[..., phase] = (1.0 - share) * bordered[..., first : first + size]
        y[..., phase] += share * bordered[..., first + 1 : first + 1 + size]
    return y.reshape(*rows.shape[:-1], size * factor).swapaxes(axis, -1)


def _gathered(ops: Ops, dy: Array, axis: int, factor: int) -> Array:
    rows = dy.swapaxes(axis, -1)
    size = rows.shape[-1] // factor
    phases = rows.reshape(*rows.shape[:-1], size, factor)
    bordered: Array = ops.xp.zeros((*rows.shape[:-1], size + 2), dy.dtype)
    for phase in range(factor):
        first, share = _neighbours(phase, factor)
        bordered[..., first : first + size] += (1.0 - share) * phases[..., phase]
        bordered[..., first + 1 : first + 1 + size] += share * phases[..., phase]
    bordered[..., 1] += bordered[..., 0]
    bordered[..., -2] += bordered[..., -1]
    return bordered[..., 1:-1].swapaxes(axis, -1)


def _neighbours(phase: int, factor: int) -> tuple[int, float]:
    """Return the first pixel of output ``factor``·q + ``phase``, and the second pixel's weight.

    The index is relative to q in the image with a border of one; pixel centres are at halves.
    """
    place = (phase + 0.5) / factor - 0.5
    return (0, place + 1.0) if place < 0 else (1, place)


_Region: TypeAlias = tuple[slice, ...]


@kernel(half="native")
def pad(
    ops: Ops, x: Array, pads: Sequence[tuple[int, int]], value: float, mode: str = "constant"
) -> Array:
    shape = [size + sum(ends) for size, ends in zip(x.shape, pads, strict=True)]
    # From the slowest to the fastest axis: images stay channels-last.
    apart = steps(x)
    axes = sorted(range(x.ndim), key=lambda axis: -abs(apart[axis]))
    laid: Array = ops.xp.full([shape[axis] for axis in axes], value, x.dtype)
    full = laid.transpose(sorted(range(x.ndim), key=axes.__getitem__))
    full[inside(pads, x.shape)] = x
    if mode != "constant":
        for axis, ends in enumerate(pads):
            for border, source in _sources(mode, axis, x.shape[axis], ends):
                full[border] = full[source]
    return full


@kernel(half="lift")
def pad_backward(ops: Ops, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> Array:
    shape = [size - sum(ends) for size, ends in zip(dy.shape, pads, strict=True)]
    if mode == "constant":
        return dy[inside(pads, shape)]
    full = dy.copy(order="K")
    for axis in reversed(range(dy.ndim)):
        for border, source in _sources(mode, axis, shape[axis], pads[axis]):
            given = full[border]
            if mode == "replicate":
                given = given.sum(axis=axis, keepdims=True)
            ops.xp.add(full[source], given, out=full[source])
    return full[inside(pads, shape)]


def inside(pads: Sequence[tuple[int, int]], shape: Sequence[int]) -> _Region:
    """Return the position of an array of ``shape`` within its borders."""
    ends = zip(pads, shape, strict=True)
    return tuple(slice(before, before + size) for (before, _), size in ends)


def _sources(
    mode: str, axis: int, size: int, ends: tuple[int, int]
) -> Iterator[tuple[_Region, _Region]]:
    """Yield the nonempty borders along ``axis``, and their sources."""
    (before, after), end = ends, ends[0] + size
    borders = slice(0, before), slice(end, end + after)
    if mode == "replicate":
        sources = slice(before, before + 1), slice(end - 1, end)
    elif mode == "circular":
        sources = slice(size, end), slice(before, before + after)
    else:
        # Without the edge itself; a slice back to index 0 has the end None.
        last = end - 2 - after
        sources = slice(2 * before, before, -1), slice(end - 2, last if last >= 0 else None, -1)
    for border, source, count in zip(borders, sources, ends, strict=True):
        if count:
            all_before = (slice(None),) * axis
            yield (*all_before, border), (*all_before, source)
