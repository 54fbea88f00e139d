"""Convolve volumes, narrow images and single channels.

Nothing is unfolded into columns: windows are views of the padded image, and their products with the
kernels are summed for many outputs of a row at a time.

A plane of a kernel reads slices of a volume at a stride; its share is one convolution of images.

In channels-last memory the windows of one kernel row at pixels kw apart adjoin without overlap:
they form a matrix, a view of the padded image. kw such views cover every pixel. These windows have
stride 1 and no dilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd, log
from typing import Any, NamedTuple

from singanet.base.heap import steps
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.conv.im2col import laid_out, rows_product, summed_product
from singanet.ops.numpy.linear import sum_of
from singanet.ops.numpy.windows import (
    along,
    band,
    band_by_group,
    blocks,
    channels_first,
    meetings,
    padded_groups,
    scratch_bytes,
)
from singanet.ops.window import Pair, Window
from singanet.types import Array, Shape


def can_gather(window: Window) -> bool:
    """Whether the windows over each pixel have taps at equal distances."""
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    return all(1 in axis for axis in axes)


def moves_less(dy: Array, x_shape: Shape, window: Window) -> bool:
    """Whether `gather` moves less memory than scattering; it copies instead of adding."""
    (_, c, h, w), (_, f, oh, ow), (sh, sw) = x_shape, dy.shape, window.stride
    # An addition moves about three times as much as a copy: benchmarks/conv_kernels.py.
    return f * h * w <= 3 * c * oh * ow * sh * sw or window.kernel == (1, 1)


def gather(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """Compute `Ops.conv2d_backward_data` by a convolution for each remainder by the stride."""
    groups, (n, c, h, w), (f, cg, kh, kw) = window.groups, x_shape, weight.shape
    swapped = weight.reshape(groups, f // groups, cg, kh, kw).transpose(0, 2, 1, 3, 4)
    swapped = swapped.reshape(c, f // groups, kh, kw)
    phases = [_phases(window, k, x_shape[2 + k], dy.shape[2 + k]) for k in (0, 1)]
    if window.stride == (1, 1):
        return ops.conv2d(*_phase_of(dy, swapped, phases[0][0], phases[1][0], groups))
    every = window.kernel[0] >= window.stride[0] and window.kernel[1] >= window.stride[1]
    dx: Array = (ops.xp.empty if every else ops.xp.zeros)((n, h, w, c), dy.dtype)
    for samples, _ in blocks(n, 1, h * w * c * dy.itemsize, scratch_bytes(ops)):
        for rows, cols in product(*phases):
            part = ops.conv2d(*_phase_of(dy[samples], swapped, rows, cols, groups))
            dx[samples, rows.targets, cols.targets] = part.transpose(0, 2, 3, 1)
    return dx.transpose(0, 3, 1, 2)


def gather_depthwise(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """Compute `Ops.depthwise_conv2d_backward_data`, one kernel of each channel at a time."""
    (c, m, _, _), (n, _, h, w) = weight.shape, x_shape
    window = replace(window, groups=c)
    if m == 1:
        return gather(ops, dy, weight, x_shape, window)
    dx: Array = ops.xp.empty((n, h, w, c), dy.dtype)
    for samples, _ in blocks(n, 1, h * w * c * dy.itemsize, scratch_bytes(ops)):
        target = dx[samples].transpose(0, 3, 1, 2)
        for k in range(m):
            given, kernels = dy[samples, k::m], weight[:, k : k + 1]
            part = gather(ops, given, kernels, target.shape, window)
            if k:
                ops.xp.add(target, part, out=target)
            else:
                ops.xp.copyto(target, part)
    return dx.transpose(0, 3, 1, 2)


class _Phase(NamedTuple):
    """The pixels along one axis with the same remainder by the stride, and their gradients."""

    taps: slice
    """The kernel positions that cover these pixels."""
    targets: slice
    """The pixels."""
    source: slice
    """The part of dy for these pixels."""
    pads: tuple[int, int]
    """Zeros before and after that part."""
    dilation: int


def _phase_of(
    dy: Array, swapped: Array, rows: _Phase, cols: _Phase, groups: int
) -> tuple[Array, Array, None, Window]:
    """Return the arguments of the convolution for the pixels of two phases."""
    kernels = swapped[:, :, rows.taps, cols.taps][:, :, ::-1, ::-1]
    kernel, dilation = (kernels.shape[2], kernels.shape[3]), (rows.dilation, cols.dilation)
    window = Window(kernel, (1, 1), (rows.pads, cols.pads), dilation, groups=groups)
    return dy[:, :, rows.source, cols.source], kernels, None, window


def _phases(window: Window, axis: int, size: int, out: int) -> list[_Phase]:
    kernel, stride = window.kernel[axis], window.stride[axis]
    dilation = window.dilation[axis] if stride == 1 else 1
    pad = window.pads[axis][0]
    found = []
    for remainder in range(min(stride, kernel)):
        span = (len(range(remainder, kernel, stride)) - 1) * dilation
        first = -((remainder - pad) // stride)
        start = first * stride + remainder - pad
        count = -((start - size) // stride)
        if count < 1:
            continue
        before, after = span - first, first + count - out
        found.append(
            _Phase(
                slice(remainder, None, stride),
                slice(start, None, stride),
                slice(max(-before, 0), out - max(-after, 0)),
                (max(before, 0), max(after, 0)),
                dilation,
            )
        )
    return found


def conv(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    out = window._out_size(*x.shape[2:])
    y: Array = ops.xp.zeros((len(x), *out, len(weight)), x.dtype)
    for plane, met, outputs in _planes(window, x.shape[2], out[0]):
        part = ops.conv2d(_images(x[:, :, met]), weight[:, :, plane], None, _flat(window))
        _add(ops, y[:, outputs], part)
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return channels_first(y)


def data(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    n, c, depth, *size = x_shape
    dx: Array = ops.xp.zeros((n, depth, *size, c), dy.dtype)
    for plane, met, outputs in _planes(window, depth, dy.shape[2]):
        slopes = _images(dy[:, :, outputs])
        shape = (len(slopes), c, *size)
        part = ops.conv2d_backward_data(slopes, weight[:, :, plane], shape, _flat(window))
        _add(ops, dx[:, met], part)
    return channels_first(dx)


def weights(ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window) -> Array:
    dw: Array = ops.xp.zeros(weight_shape, dy.dtype)
    shape = (*weight_shape[:2], *weight_shape[3:])
    for plane, met, outputs in _planes(window, x.shape[2], dy.shape[2]):
        images, slopes = _images(x[:, :, met]), _images(dy[:, :, outputs])
        dw[:, :, plane] = ops.conv2d_backward_weights(images, slopes, shape, _flat(window))
    return dw


def _planes(window: Window, depth: int, out: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield the index of each plane of the kernel, its input slices, and their outputs."""
    return along(window, 0, depth, slice(0, out))


def _flat(window: Window) -> Window:
    """Return the window without its depth."""
    pads, dilation = window.pads[1:], window.dilation[1:]
    return Window(window.kernel[1:], window.stride[1:], pads, dilation, groups=window.groups)


def _images(x: Array) -> Array:
    """Reshape (N, C, D, H, W) to (N·D, C, H, W)."""
    n, c, depth, height, width = x.shape
    return x.transpose(0, 2, 1, 3, 4).reshape(n * depth, c, height, width)


def _add(ops: Ops, volumes: Array, images: Array) -> None:
    """Add ``images`` (N·D, C, H, W) to ``volumes`` (N, D, H, W, C), in place."""
    terms = images.transpose(0, 2, 3, 1).reshape(volumes.shape)
    ops.xp.add(volumes, terms, out=volumes)


_MOST_KERNELS = 16
_LEAST_CHANNELS = 4
_MOST_PADDING = 1.6
"""Padded pixels for each output up to which this is faster: benchmarks/conv_kernels.py."""


def is_narrow(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window) -> bool:
    """Whether these kernels can compute the convolution, and are faster."""
    (f, cg, _, _), (height, width) = weight_shape, window._out_size(*x_shape[2:])
    plain = window.stride == (1, 1) == window.dilation
    if not plain or not ops.on_host or f > _MOST_KERNELS * window.groups or cg < _LEAST_CHANNELS:
        return False
    around = (height + window.kernel[0] - 1) * (width + window.kernel[1] - 1)
    return window.kernel[1] > 1 and around <= _MOST_PADDING * height * width


def conv2d(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    xp, (f, cg, kh, kw), (n, oh, ow) = ops.xp, weight.shape, _sizes(x, window)
    groups, fg = window.groups, f // window.groups
    by_row = weight.reshape(groups, fg, cg, kh, kw).transpose(3, 0, 4, 2, 1)
    kernels = [laid_out(ops, k, n * oh * ow) for k in by_row.reshape(kh, groups, kw * cg, fg)]
    y: Array = xp.empty((n, oh, ow, groups, fg), x.dtype)
    for lane in ops.lanes(n, y.size * cg * kh * kw):
        _narrow_into(ops, y[lane], x[lane], kernels, bias, window)
    return y.reshape(n, oh, ow, f).transpose(0, 3, 1, 2)


def _narrow_into(
    ops: Ops, y: Array, x: Array, kernels: list[Array], bias: Array | None, window: Window
) -> None:
    """Convolve x into y (N, H', W', groups, F/groups), with a matrix for each kernel row."""
    xp, kh, (groups, fg) = ops.xp, window.kernel[0], y.shape[3:]
    cg = x.shape[1] // groups
    room: list[Array] = []
    for samples, rows, full in _padded_bands(ops, x, window, groups * fg):
        starts, target = _starts(full, window), y[samples, rows]
        size = full.size // cg * fg
        # The first band is the largest.
        room = room or [xp.empty(size, x.dtype) for _ in range(2)]
        total, part = (half[:size].reshape(*full.shape[:4], fg) for half in room)
        lines, more = (sums.reshape(groups, -1, fg)[:, :starts] for sums in (total, part))
        inside, added = (_where_windows_fit(sums, target) for sums in (total, part))
        for a in range(kh):
            sums = more if a else lines
            for windows, pixels in _touching(full, a, window):
                rows_product(ops, windows, kernels[a], sums[:, pixels])
            if 0 < a < kh - 1:
                xp.add(lines, more, out=lines)
        if kh > 1:
            xp.add(inside, added, out=target)
        else:
            xp.copyto(target, inside)
        if bias is not None:
            xp.add(target, bias.reshape(groups, fg), out=target)


def conv2d_backward_weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array:
    xp, (f, cg, kh, kw), groups = ops.xp, weight_shape, window.groups
    # On the grid of padded pixels, zero at pixels without a window.
    pads = ((0, kh - 1), (0, kw - 1))
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * cg * kh * kw):
        total: Array = xp.zeros((kh, groups, f // groups, kw * cg), dy.dtype)
        for samples, rows, full in _padded_bands(ops, x[lane], window, f):
            slopes = padded_groups(ops, dy[lane][samples, :, rows], pads, groups)
            slopes = slopes.reshape(groups, -1, f // groups)
            for a in range(kh):
                for windows, pixels in _touching(full, a, window):
                    total[a] += summed_product(ops, windows, slopes[:, pixels])
        totals.append(total)
    taps = sum_of(ops, totals).reshape(kh, groups, f // groups, kw, cg).transpose(1, 2, 4, 0, 3)
    return xp.ascontiguousarray(taps).reshape(weight_shape)


def _padded_bands(
    ops: Ops, x: Array, window: Window, kernels: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield samples, output rows, and their padded input (groups, N, H, W, C)."""
    n, height, width = _sizes(x, window)
    values = x.shape[1] + 2 * kernels
    row_bytes = (width + window.kernel[1] - 1) * values * x.itemsize
    for samples, rows in blocks(n, height, row_bytes, scratch_bytes(ops)):
        yield samples, rows, band_by_group(ops, x[samples], window, rows)


def _sizes(x: Array, window: Window) -> Shape:
    """Return samples, rows and columns of the outputs."""
    return (len(x), *window._out_size(*x.shape[2:]))


def _where_windows_fit(sums: Array, target: Array) -> Array:
    """Return the outputs' pixels of ``sums`` (groups, N, H, W, F) as (N, H', W', G, F)."""
    return sums[:, :, : target.shape[1], : target.shape[2]].transpose(1, 2, 3, 0, 4)


def _starts(full: Array, window: Window) -> int:
    """Return the number of possible window starts in the flattened padded images."""
    _, n, height, width, _ = full.shape
    return n * height * width - (window.kernel[0] - 1) * width - (window.kernel[1] - 1)


def _touching(full: Array, row: int, window: Window) -> Iterator[tuple[Array, slice]]:
    """Yield matrices (G, M, kw·C) of kernel row ``row`` of ``full``, and their first pixels.

    Windows across a border belong to pixels without an output.
    """
    groups, _, _, width, c = full.shape
    kw, flat, starts = window.kernel[1], full.reshape(groups, -1), _starts(full, window)
    for first in range(min(kw, starts)):
        count = (starts - first - 1) // kw + 1
        begin = (row * width + first) * c
        matrices = flat[:, begin : begin + count * kw * c].reshape(groups, count, kw * c)
        yield matrices, slice(first, first + (count - 1) * kw + 1, kw)


_SLOWER = 8
"""Time of a multiplication by einsum relative to BLAS."""

_RUN = 1500
"""Adjacent output values for which nine kernels and the sums fit in the first-level cache."""


@kernel(half="lift")
def depthwise_conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array:
    xp, (c, m, kh, kw) = ops.xp, weight.shape
    oh, ow = window._out_size(*x.shape[2:])
    together = _together(ow, c * m)
    run = together * c * m
    kernels = _along_rows(xp, weight, together).reshape(kh, kw, run)
    y: Array = xp.empty((len(x), oh, ow // together, run), x.dtype)
    for lane in ops.lanes(len(x), y.size * kh * kw * _SLOWER):
        mine = y[lane]
        for samples, rows, parts in _bands(ops, x[lane], window, m, together):
            part = mine[samples, rows]
            for k, (windows, taps) in enumerate(parts):
                if not k and ops.on_host:  # CuPy's einsum has no `out`
                    xp.einsum("nhrabx,abx->nhrx", windows, kernels[:, taps], out=part)
                    continue
                sums = xp.einsum("nhrabx,abx->nhrx", windows, kernels[:, taps])
                if k:
                    xp.add(part, sums, out=part)
                else:
                    part[...] = sums
    y = y.reshape(len(x), oh, ow, c * m)
    if bias is not None:
        xp.add(y, bias, out=y)
    return y.transpose(0, 3, 1, 2)


@kernel(half="lift")
def depthwise_conv2d_backward_weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array:
    xp, (c, m, kh, kw) = ops.xp, weight_shape
    width = dy.shape[3]
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * kh * kw * _SLOWER):
        total: Array = xp.zeros((kh, kw, width * c * m), dy.dtype)
        for samples, rows, parts in _bands(ops, x[lane], window, m, width):
            given = ops.channels_last(dy[lane][samples, :, rows])
            lines = given.reshape(*given.shape[:2], 1, width * c * m)
            for windows, taps in parts:
                total[:, taps] += xp.einsum("nhrabx,nhrx->abx", windows, lines)
        totals.append(total)
    sums = sum_of(ops, totals).reshape(kh * kw, width, c, m).sum(axis=1)
    return xp.ascontiguousarray(sums.transpose(1, 2, 0)).reshape(weight_shape)


@kernel(half="lift")
def scatter_depthwise(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """Compute `Ops.depthwise_conv2d_backward_data` by products, added to their pixels."""
    xp, m = ops.xp, weight.shape[1]
    (n, c, h, w), (oh, ow) = x_shape, dy.shape[2:]
    kernels = _along_rows(xp, weight, ow)
    dx: Array = xp.zeros((n, h, w, c), dy.dtype)
    for samples, rows in blocks(n, oh, 2 * ow * c * m * dy.itemsize, scratch_bytes(ops)):
        given = ops.channels_last(dy[samples, :, rows])
        given = given.reshape(*given.shape[:3], c, m)
        for k, pixels, outputs in meetings(window, (h, w), (oh, ow), rows):
            product = xp.multiply(given[outputs], kernels[k][outputs[2]])
            dx[samples][pixels] += product[..., 0] if m == 1 else product.sum(axis=-1)
    return dx.transpose(0, 3, 1, 2)


def _bands(
    ops: Ops, x: Array, window: Window, m: int, together: int
) -> Iterator[tuple[slice, slice, Iterator[tuple[Array, slice]]]]:
    """Yield samples, output rows, and their windows from `_in_runs`."""
    n, c = x.shape[:2]
    height, width = window._out_size(*x.shape[2:])
    # The pixels of a block, padded and repeated, and the sums over their windows.
    row_bytes = 3 * width * c * m * x.itemsize
    for samples, rows in blocks(n, height, row_bytes, scratch_bytes(ops)):
        full = band(ops, x[samples], window, rows)
        wide = full if m == 1 else ops.xp.repeat(full, m, axis=3)
        out = (rows.stop - rows.start, width)
        yield samples, rows, _in_runs(ops.xp, wide, window, out, together)


def _in_runs(
    xp: Any, full: Array, window: Window, out: Pair, together: int
) -> Iterator[tuple[Array, slice]]:
    """Yield views (N, H', runs, kh, taps, run·C) of the padded ``full``, and their columns' taps.

    ``together`` outputs in a row make a run. The pixels of a tap in a run are adjacent: with a
    stride, in a copy of columns at the stride, which serves the taps at distances that the stride
    divides.
    """
    n, _, _, c = full.shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    common = gcd(sw, dw)
    step = sw // common
    for first in range(min(step, kw)):
        taps = slice(first, None, step)
        columns = xp.ascontiguousarray(full[:, :, first * dw % sw :: sw])
        by_n, by_h, by_w, by_c = steps(columns)
        shape = (n, out[0], out[1] // together, kh, len(range(first, kw, step)), together * c)
        strides = (by_n, by_h * sh, by_w * together, by_h * dh, by_w * (dw // common), by_c)
        start = columns[:, :, first * dw // sw :]
        yield xp.lib.stride_tricks.as_strided(start, shape, strides), taps


@lru_cache(maxsize=256)
def _together(width: int, channels: int) -> int:
    """Return the outputs of a run: a divisor of the width, for about `_RUN` values."""
    divisors = (part for part in range(1, width + 1) if width % part == 0)
    return min(divisors, key=lambda part: abs(log(part * channels / _RUN)), default=1)


def _along_rows(xp: Any, weight: Array, width: int) -> Array:
    """Repeat the weight to (kh·kw, W', C, M), for each of the W' outputs of a row.

    A product with a row of pixels is then one long run.
    """
    c, m, kh, kw = weight.shape
    kernels: Array = xp.empty((kh * kw, width, c, m), weight.dtype)
    kernels[...] = weight.reshape(c, m, kh * kw).transpose(2, 0, 1)[:, None]
    return kernels
