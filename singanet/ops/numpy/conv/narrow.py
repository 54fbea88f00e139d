"""Convolution with few kernels, whose windows would cost more to copy than to multiply.

In channels-last memory the windows of one kernel row at pixels that lie kw apart touch without
overlapping: they are a matrix already, a view of the padded image. kw such views meet every pixel.

Windows have stride 1 and no dilation.
"""

from __future__ import annotations

from collections.abc import Iterator

from singanet.ops.interface import Ops
from singanet.ops.numpy.conv.products import laid_out, rows_product, summed_product
from singanet.ops.numpy.lanes import sum_of
from singanet.ops.numpy.windows import band_by_group, blocks, padded_groups, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape

_MOST_KERNELS = 16
_LEAST_CHANNELS = 4
_MOST_PADDING = 1.6
"""Padded pixels an output up to which this is faster: benchmarks/conv_kernels.py."""


def is_narrow(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window, groups: int) -> bool:
    """Whether these kernels serve the convolution, and are the faster ones."""
    (f, cg, _, _), (height, width) = weight_shape, window.out_size(*x_shape[2:])
    plain = window.stride == (1, 1) == window.dilation
    if not plain or not ops.on_host or f > _MOST_KERNELS * groups or cg < _LEAST_CHANNELS:
        return False
    around = (height + window.kernel[0] - 1) * (width + window.kernel[1] - 1)
    return window.kernel[1] > 1 and around <= _MOST_PADDING * height * width


def conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array:
    """See `Ops`."""
    xp, (f, cg, kh, kw), (n, oh, ow) = ops.xp, weight.shape, _sizes(x, window)
    fg = f // groups
    by_row = weight.reshape(groups, fg, cg, kh, kw).transpose(3, 0, 4, 2, 1)
    kernels = [laid_out(ops, k, n * oh * ow) for k in by_row.reshape(kh, groups, kw * cg, fg)]
    y: Array = xp.empty((n, oh, ow, groups, fg), x.dtype)
    for lane in ops.lanes(n, y.size * cg * kh * kw):
        _narrow_into(ops, y[lane], x[lane], kernels, bias, window)
    return y.reshape(n, oh, ow, f).transpose(0, 3, 1, 2)


def _narrow_into(
    ops: Ops, y: Array, x: Array, kernels: list[Array], bias: Array | None, window: Window
) -> None:
    """Convolve x into y (N, H', W', groups, F/groups), by a matrix for each kernel row."""
    xp, kh, (groups, fg) = ops.xp, window.kernel[0], y.shape[3:]
    cg = x.shape[1] // groups
    room: list[Array] = []
    for samples, rows, full in _padded_bands(ops, x, window, groups * fg, groups):
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
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops`."""
    xp, (f, cg, kh, kw) = ops.xp, weight_shape
    # On the grid of padded pixels, zero where no window starts.
    pads = ((0, kh - 1), (0, kw - 1))
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * cg * kh * kw):
        total: Array = xp.zeros((kh, groups, f // groups, kw * cg), dy.dtype)
        for samples, rows, full in _padded_bands(ops, x[lane], window, f, groups):
            slopes = padded_groups(ops, dy[lane][samples, :, rows], pads, groups)
            slopes = slopes.reshape(groups, -1, f // groups)
            for a in range(kh):
                for windows, pixels in _touching(full, a, window):
                    total[a] += summed_product(ops, windows, slopes[:, pixels])
        totals.append(total)
    taps = sum_of(ops, totals).reshape(kh, groups, f // groups, kw, cg).transpose(1, 2, 4, 0, 3)
    return xp.ascontiguousarray(taps).reshape(weight_shape)


def _padded_bands(
    ops: Ops, x: Array, window: Window, kernels: int, groups: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Samples, output rows, and the padded (groups, N, H, W, C) that these rows see."""
    n, height, width = _sizes(x, window)
    values = x.shape[1] + 2 * kernels
    row_bytes = (width + window.kernel[1] - 1) * values * x.itemsize
    for samples, rows in blocks(n, height, row_bytes, scratch_bytes(ops)):
        yield samples, rows, band_by_group(ops, x[samples], window, rows, groups)


def _sizes(x: Array, window: Window) -> Shape:
    """Samples, rows and columns of the outputs."""
    return (len(x), *window.out_size(*x.shape[2:]))


def _where_windows_fit(sums: Array, target: Array) -> Array:
    """Of ``sums`` (groups, N, H, W, F) the pixels of outputs, as ``target`` (N, H', W', G, F)."""
    return sums[:, :, : target.shape[1], : target.shape[2]].transpose(1, 2, 3, 0, 4)


def _starts(full: Array, window: Window) -> int:
    """How many pixels of the padded images, counted through, a window can start at."""
    _, n, height, width, _ = full.shape
    return n * height * width - (window.kernel[0] - 1) * width - (window.kernel[1] - 1)


def _touching(full: Array, row: int, window: Window) -> Iterator[tuple[Array, slice]]:
    """Matrices (G, M, kw·C) of kernel row ``row`` of ``full``, and the pixels where they start.

    Windows that run over a border belong to pixels without an output.
    """
    groups, _, _, width, c = full.shape
    kw, flat, starts = window.kernel[1], full.reshape(groups, -1), _starts(full, window)
    for first in range(min(kw, starts)):
        count = (starts - first - 1) // kw + 1
        begin = (row * width + first) * c
        matrices = flat[:, begin : begin + count * kw * c].reshape(groups, count, kw * c)
        yield matrices, slice(first, first + (count - 1) * kw + 1, kw)
