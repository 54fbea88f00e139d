"""Slide windows over images: padding, blocks of bounded scratch, im2col.

Inside kernels, images are channels-last, so that windows are copied in long runs and matrix
products need no transposition; outside they are NCHW views of that memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from singanet.base.heap import steps
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.window import Pads, Sizes, Window
from singanet.types import Array, Shape

SCRATCH_BYTES = 1 << 21
"""Scratch for the columns of one block, small enough for a core's share of the cache."""

DEVICE_SCRATCH_BYTES = 1 << 28
"""The same on a GPU, where few large calls are faster."""

_SHORT_RUN = 10
"""Values in a row below which copying them one after the other takes longer than strides."""

Region = tuple[slice, ...]


def scratch_bytes(ops: Ops, usual: int = 0, least: int = 0) -> int:
    """Return the bytes of a block: ``usual`` or `SCRATCH_BYTES`, more on a GPU.

    The least value is ``least``.
    """
    return max(least, (usual or SCRATCH_BYTES) if ops.on_host else DEVICE_SCRATCH_BYTES)


@kernel(half="native")
def channels_last(ops: Ops, x: Array) -> Array:
    return ops.xp.ascontiguousarray(x.transpose(0, *range(2, x.ndim), 1))


def padded(ops: Ops, x: Array, pads: Pads, value: float = 0.0) -> Array:
    """Return ``x`` (N, C, H, W) as (N, H + pads, W + pads, C), padded with ``value``."""
    if not any(map(any, pads)):
        return ops.channels_last(x)
    return padded_groups(ops, x, pads, 1, value)[0]


def padded_groups(ops: Ops, x: Array, pads: Pads, groups: int, value: float = 0.0) -> Array:
    """Return ``x`` (N, C, H, W) as (groups, N, H + pads, W + pads, C/groups), a copy."""
    (top, bottom), (left, right) = pads
    n, c, h, w = x.shape
    shape = (groups, n, top + h + bottom, left + w + right, c // groups)
    full: Array = ops.xp.empty(shape, x.dtype)
    middle = full[:, :, top : top + h]
    borders = (full[:, :, :top], full[:, :, top + h :], middle[..., :left, :])
    for border in (*borders, middle[..., left + w :, :]):
        if border.size:
            border[...] = value
    split = x.reshape(n, groups, c // groups, h, w)
    middle[..., left : left + w, :] = split.transpose(1, 0, 3, 4, 2)
    return full


def band(ops: Ops, x: Array, window: Window, rows: slice, value: float = 0.0) -> Array:
    """Return the part of the padded ``x`` under the windows of output rows ``rows``."""
    return padded(ops, *_seen(x, window, rows), value)


def band_by_group(ops: Ops, x: Array, window: Window, rows: slice) -> Array:
    """Return the `band`, padded with zeros, as (groups, N, H, W, C/groups).

    It is contiguous, except for windows of one pixel, which are a view.
    """
    groups = window.groups
    if groups > 1 and window.kernel != (1, 1):
        return padded_groups(ops, *_seen(x, window, rows), groups)
    full = band(ops, x, window, rows)
    split = full.reshape(*full.shape[:3], groups, x.shape[1] // groups)
    return split.transpose(3, 0, 1, 2, 4)


def as_columns(ops: Ops, full: Array, window: Window, out: Sizes) -> Array:
    """Return the windows of ``full`` (groups, N, H, W, C) as (groups, N·H'·W', kh·kw·C).

    The matrix is a view of a fresh copy: window by window, or, for windows with short rows, kernel
    position by kernel position, so that runs follow the row of outputs. For windows of one pixel it
    is a view of ``full``.
    """
    groups, n, height, width, cg = full.shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    if kh * kw * sh * sw == 1:
        return full.reshape(groups, n * height * width, cg)
    by_g, by_n, by_h, by_w, by_c = steps(full)
    shape: Shape = (groups, n, *out, kh, kw, cg)
    strides = (by_g, by_n, by_h * sh, by_w * sw, by_h * dh, by_w * dw, by_c)
    windows = ops.xp.lib.stride_tricks.as_strided(full, shape, strides)
    m, k = n * out[0] * out[1], kh * kw * cg
    if (kw * cg if dw == 1 else cg) >= _SHORT_RUN:
        return ops.xp.ascontiguousarray(windows).reshape(groups, m, k)
    taps_first = ops.xp.ascontiguousarray(windows.transpose(0, 4, 5, 6, 1, 2, 3))
    return taps_first.reshape(groups, k, m).transpose(0, 2, 1)


def _seen(x: Array, window: Window, rows: slice) -> tuple[Array, Pads]:
    """Return the rows of ``x`` under the windows of output rows ``rows``, and their padding."""
    height = x.shape[2]
    first = rows.start * window.stride[0] - window.pads[0][0]
    end = (rows.stop - 1) * window.stride[0] - window.pads[0][0] + window.extent[0]
    top = min(max(-first, 0), end - first)
    start = min(first + top, height)
    inside = x[:, :, start : max(start, min(end, height))]
    bottom = end - first - top - inside.shape[2]
    return inside, ((top, bottom), window.pads[1])


def blocks(
    n: int, height: int, bytes_per_row: int, scratch: int = 0
) -> Iterator[tuple[slice, slice]]:
    """Yield slices of samples and output rows whose columns fit in ``scratch``.

    They are several whole samples if these fit, or bands of rows of one sample. By default
    ``scratch`` is `SCRATCH_BYTES`.
    """
    scratch = scratch or SCRATCH_BYTES
    per_sample = max(1, height * bytes_per_row)
    if per_sample <= scratch:
        step = scratch // per_sample
        for first in range(0, n, step):
            yield slice(first, min(n, first + step)), slice(0, height)
        return
    band = max(1, scratch // bytes_per_row)
    for sample in range(n):
        for top in range(0, height, band):
            yield slice(sample, sample + 1), slice(top, min(height, top + band))


def channels_first(last: Array) -> Array:
    """Return (N, ..., C) as an (N, C, ...) view."""
    return last.transpose(0, last.ndim - 1, *range(1, last.ndim - 1))


def meetings(
    window: Window, size: Shape, out: Shape, rows: slice | None = None
) -> Sequence[tuple[int, Region, Region]]:
    """Return index, pixels and outputs of each kernel position.

    ``rows`` limits the rows of outputs, counted from its start.
    """
    first, end = (0, out[0]) if rows is None else (rows.start, rows.stop)
    return _meetings(window, tuple(size), tuple(out), first, end)


@lru_cache(maxsize=512)
def _meetings(
    window: Window, size: Shape, out: Shape, first: int, end: int
) -> Sequence[tuple[int, Region, Region]]:
    bands = (slice(first, end), *(slice(0, count) for count in out[1:]))
    axes = [list(along(window, axis, size[axis], band)) for axis, band in enumerate(bands)]
    found = []
    for met in product(*axes):
        taps, pixels, outputs = zip(*met, strict=True)
        number = 0
        for tap, count in zip(taps, window.kernel, strict=True):
            number = number * count + tap
        found.append((number, (slice(None), *pixels), (slice(None), *outputs)))
    return found


def along(window: Window, axis: int, size: int, band: slice) -> Iterator[tuple[int, slice, slice]]:
    """Yield each tap along an axis with its pixels, and their outputs in ``band``."""
    stride = window.stride[axis]
    for tap in range(window.kernel[axis]):
        offset = tap * window.dilation[axis] - window.pads[axis][0]
        first = max(-(offset // stride), band.start)
        end = min((size - 1 - offset) // stride + 1, band.stop)
        if first < end:
            pixels = slice(offset + first * stride, offset + (end - 1) * stride + 1, stride)
            yield tap, pixels, slice(first - band.start, end - band.start)
