"""Convolve by a matrix product with columns (im2col).

BLAS multiplies sixteen kernels in little more time than four, so small groups are joined: zeros for
the other groups' channels cost less than they save. A NaN or an infinity then reaches the joined
groups.

OpenBLAS multiplies small matrices in place, and larger ones after copying both ("packing"), which
with few columns takes as long as the product: benchmarks/conv_products.py.

Products are (G, M, K) by (G, K, N), with many rows M.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from singanet.base.heap import steps
from singanet.ops.blas import product
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.linear import in_lanes, sum_of
from singanet.ops.numpy.windows import as_columns, band_by_group, blocks, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape

_WIDE = 16
"""Most channels and kernels of joined groups: with 32 the zeros cost more."""


@lru_cache(maxsize=256)
def joined(groups: int, weight_shape: Shape) -> int:
    """Return the number of groups to join into one; 1 for none."""
    most = _WIDE // max(weight_shape[1], weight_shape[0] // groups)
    return max((many for many in range(1, most + 1) if groups % many == 0), default=1)


def joined_conv2d(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    wide, window = _wide(ops, weight, window)
    return ops.conv2d(x, wide, bias, window)


def data(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    wide, window = _wide(ops, weight, window)
    return ops.conv2d_backward_data(dy, wide, x_shape, window)


def weights(ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window) -> Array:
    (f, cg, *kernel), groups = weight_shape, window.groups
    many = joined(groups, weight_shape)
    shape, window = (f, many * cg, *kernel), replace(window, groups=groups // many)
    wide = ops.conv2d_backward_weights(x, dy, shape, window)
    split = wide.reshape(groups // many, many, f // groups, many, cg, *kernel)
    dw: Array = ops.xp.empty((groups // many, many, f // groups, cg, *kernel), wide.dtype)
    for own in range(many):
        dw[:, own] = split[:, own, :, own]
    return dw.reshape(weight_shape)


def _wide(ops: Ops, weight: Array, window: Window) -> tuple[Array, Window]:
    """Return the weight (F, C/groups, kh, kw) with joined groups, padded by zeros; its window."""
    (f, cg, *kernel), groups = weight.shape, window.groups
    many = joined(groups, weight.shape)
    split = weight.reshape(groups // many, many, f // groups, cg, *kernel)
    wide: Array = ops.xp.zeros((groups // many, many, f // groups, many, cg, *kernel), weight.dtype)
    for own in range(many):
        wide[:, own, :, own] = split[:, own]
    return wide.reshape(f, many * cg, *kernel), replace(window, groups=groups // many)


_SMALL = 1_000_000
"""Multiplications of a product up to which OpenBLAS does not pack (with AVX-512)."""

_FEWEST_ROWS = 4
"""Rows of a small product below which a large product is faster."""

_FEWEST_SUMMED = 64
_MOST_SUMS = 300_000
"""Least rows of a piece, and most values in all sums, for which writing the sums pays."""


def laid_out(ops: Ops, kernels: Array, rows: int) -> Array:
    """Return ``kernels`` (G, K, N) for `rows_product` of ``rows`` rows: (G, P, K, N/P)."""
    groups, k, n = kernels.shape
    if not ops.on_host or 512 * rows < k * n or rows < 64:
        return kernels[:, None]
    width = n if 8 * k * n <= _SMALL else _part(n, 64)
    if _FEWEST_ROWS * k * width > _SMALL:
        return kernels[:, None]
    parts = kernels.reshape(groups, k, n // width, width).transpose(0, 2, 1, 3)
    return ops.xp.ascontiguousarray(parts)


def rows_product(ops: Ops, rows: Array, kernels: Array, out: Array, alone: bool = False) -> None:
    """Multiply ``rows`` (G, M, K) by ``kernels`` from `laid_out`, into (G, M, N).

    ``alone`` divides the product of a single sample among threads, as in `summed_product`.
    """
    (groups, m, k), (_, parts, _, width) = rows.shape, kernels.shape
    most = _SMALL // (k * width)
    if parts == 1 and (not ops.on_host or not _FEWEST_ROWS <= most < m):
        _product(ops, rows, kernels[:, 0], out, alone)
        return
    for lane in ops.lanes(m, groups * m * k * parts * width if alone else 0):
        _stacked(ops, rows[:, lane], kernels, out[:, lane], most)


def _stacked(ops: Ops, rows: Array, kernels: Array, out: Array, most: int) -> None:
    """Multiply in pieces of at most ``most`` rows."""
    (groups, m, k), (_, parts, _, width) = rows.shape, kernels.shape
    piece = _piece(m, most)
    whole = m // piece * piece
    for rest, size in ((slice(0, whole), piece), (slice(whole, m), m - whole)):
        if size:
            stack = rows[:, rest].reshape(groups, 1, -1, size, k)
            target = out[:, rest].reshape(groups, -1, size, parts, width)
            product(ops.xp, stack, kernels[:, :, None], target.transpose(0, 3, 1, 2, 4))


def summed_product(ops: Ops, rows: Array, others: Array, alone: bool = False) -> Array:
    """Return the sums over M of ``others`` (G, M, N) times ``rows`` (G, M, K): (G, N, K).

    If the rows are stored by column, BLAS computes the transposed product faster.
    """
    _, down, across = steps(rows)
    if down < across:
        return _summed(ops, rows, others, alone).transpose(0, 2, 1)
    return _summed(ops, others, rows, alone)


def _summed(ops: Ops, left: Array, right: Array, alone: bool) -> Array:
    """Return the sums over M of ``left`` (G, M, K) times ``right`` (G, M, N): (G, K, N)."""
    xp, (groups, m, k), n = ops.xp, left.shape, right.shape[2]
    high, width = _part(k, 64), _part(n, 48)
    piece = _piece(m, max(_SMALL // (high * width), 1))
    whole = m // piece * piece
    much = groups * (whole // piece) * k * n > _MOST_SUMS
    if not ops.on_host or much or piece < _FEWEST_SUMMED or m * k * n <= _SMALL:
        return _plain(ops, left, right, alone)
    stack = left[:, :whole].reshape(groups, -1, piece, k // high, high)
    others = right[:, :whole].reshape(groups, -1, piece, n // width, width)
    sums = xp.empty((groups, whole // piece, k, n), left.dtype)
    target = sums.reshape(groups, -1, k // high, high, n // width, width)
    xp.matmul(
        stack.transpose(0, 1, 3, 4, 2)[:, :, :, None],
        others.transpose(0, 1, 3, 2, 4)[:, :, None],
        out=target.transpose(0, 1, 2, 4, 3, 5),
    )
    total: Array = sums[:, 0] if whole == piece else sums.sum(axis=1)
    if whole < m:
        xp.add(total, _plain(ops, left[:, whole:], right[:, whole:], alone), out=total)
    return total


def _plain(ops: Ops, left: Array, right: Array, alone: bool) -> Array:
    return _product(ops, left.transpose(0, 2, 1), right, None, alone)


def _product(ops: Ops, a: Array, b: Array, out: Array | None, alone: bool) -> Array:
    if not alone or len(a) > 1:
        return product(ops.xp, a, b, out)
    return in_lanes(ops, a[0], b[0], None if out is None else out[0])[None]


@lru_cache(maxsize=1024)
def _part(size: int, near: int) -> int:
    """Return the divisor of ``size`` nearest to ``near``, within a third; otherwise ``size``."""
    if size <= near:
        return size
    for away in range(near // 3 + 1):
        for part in (near - away, near + away):
            if size % part == 0:
                return part
    return size


@lru_cache(maxsize=1024)
def _piece(size: int, most: int) -> int:
    """Return at most ``most``: a divisor of ``size`` if there is one above half of ``most``."""
    for piece in range(min(size, most), most // 2, -1):
        if size % piece == 0:
            return piece
    return -(-size // -(-size // most))


@kernel(half="lift")
def conv2d(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    f, groups = len(weight), window.groups
    oh, ow = window._out_size(*x.shape[2:])
    kernels = laid_out(ops, _matrices(weight, groups), len(x) * oh * ow)
    y: Array = ops.xp.empty((len(x), oh, ow, f), x.dtype)
    for lane in ops.lanes(len(x), y.size * weight[0].size):
        mine = y[lane]
        pieces = _column_blocks(ops, x[lane], weight.shape, window)
        for samples, rows, columns in pieces:
            part = mine[samples, rows]
            rows_product(ops, columns, kernels, by_group(part, groups), len(x) == 1)
            if bias is not None:
                ops.xp.add(part, bias, out=part)
    return y.transpose(0, 3, 1, 2)


@kernel(half="lift")
def conv2d_backward_weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array:
    (f, cg, kh, kw), groups = weight_shape, window.groups
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * cg * kh * kw):
        total: Array | None = None
        for samples, rows, columns in _column_blocks(ops, x[lane], weight_shape, window):
            part = by_group(ops.channels_last(dy[lane][samples, :, rows]), groups)
            made = summed_product(ops, columns, part, len(x) == 1)
            total = made if total is None else ops.xp.add(total, made, out=total)
        totals += [] if total is None else [total]
    if not totals:
        return ops.xp.zeros(weight_shape, dy.dtype)
    taps = sum_of(ops, totals).reshape(groups, f // groups, kh, kw, cg).transpose(0, 1, 4, 2, 3)
    return ops.xp.ascontiguousarray(taps).reshape(weight_shape)


def _column_blocks(
    ops: Ops, x: Array, weight_shape: Shape, window: Window
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield samples, output rows and their columns, in blocks of bounded scratch."""
    f, cg, kh, kw = weight_shape
    oh, ow = window._out_size(*x.shape[2:])
    row_bytes = ow * max(window.groups * cg * kh * kw, f) * x.itemsize
    # A block smaller than the weight would spend its time moving the weight.
    weight_bytes = f * cg * kh * kw * x.itemsize
    for samples, rows in blocks(x.shape[0], oh, row_bytes, scratch_bytes(ops, least=weight_bytes)):
        full = band_by_group(ops, x[samples], window, rows)
        yield samples, rows, as_columns(ops, full, window, (rows.stop - rows.start, ow))


def by_group(part: Array, groups: int) -> Array:
    """Return (N, H', W', F) as a view (groups, N·H'·W', F/groups)."""
    n, h, w, f = part.shape
    return part.reshape(n * h * w, groups, f // groups).transpose(1, 0, 2)


def _matrices(weight: Array, groups: int) -> Array:
    """Return the weight as (groups, kh·kw·C/groups, F/groups), to match the columns.

    The kernels' axis does not move in memory, which for small images would take as long as the
    products.
    """
    f, cg, kh, kw = weight.shape
    split = weight.reshape(groups, f // groups, cg, kh, kw)
    _, by_kernel, by_channel, *_ = steps(split)
    if by_kernel < by_channel:
        # The weight of a gradient, with its first axes swapped.
        return split.transpose(0, 3, 4, 2, 1).reshape(groups, kh * kw * cg, f // groups)
    rows: Array = split.transpose(0, 1, 3, 4, 2).reshape(groups, f // groups, kh * kw * cg)
    return rows.transpose(0, 2, 1)


_SHORT_RUN = 8
"""Channels below which adding one row of pixels at a time is faster."""


@kernel(half="lift")
def scatter(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """Compute `Ops.conv2d_backward_data` by products, then sums.

    Sums run over the kernel's rows first, in long runs, then over its columns.
    """
    groups, (n, c, h, w), (f, cg, kh, kw) = window.groups, x_shape, weight.shape
    (oh, ow), sh = dy.shape[2:], window.stride[0]
    by_row = weight.reshape(groups, f // groups, cg, kh, kw).transpose(3, 0, 1, 4, 2)
    matrices = by_row.reshape(kh, groups, f // groups, kw * cg)
    kernels = [laid_out(ops, matrix, n * oh * ow) for matrix in matrices]
    dx: Array = ops.xp.zeros((n, h, w, groups, cg), dy.dtype)
    row_bytes, scratch = ow * max(c * kw * (1 + sh), f) * dy.itemsize, weight.nbytes
    for lane in ops.lanes(n, dy.size * cg * kh * kw):
        given, mine = dy[lane], dx[lane]
        for samples, rows in blocks(len(given), oh, row_bytes, scratch_bytes(ops, least=scratch)):
            part = by_group(ops.channels_last(given[samples, :, rows]), groups)
            size = (samples.stop - samples.start, rows.stop - rows.start, ow)
            sums = _sum_rows(ops, part, kernels, window, size, n == 1)
            _add_columns(ops, mine[samples], sums, window, rows.start)
    return dx.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _sum_rows(
    ops: Ops,
    part: Array,
    kernels: list[Array],
    window: Window,
    size: tuple[int, int, int],
    alone: bool,
) -> Array:
    """Multiply ``part`` (groups, N·H'·W', F/groups) by the ``kernels`` of each kernel row.

    Products for one row of pixels are added, as (groups, N, rows, W', kw·C/groups).
    """
    (groups, m, _), (n, height, ow) = part.shape, size
    kh, sh, dh = window.kernel[0], window.stride[0], window.dilation[0]
    reach, width = (height - 1) * sh + 1, kernels[0].shape[1] * kernels[0].shape[3]
    sums: Array = ops.xp.empty((groups, n, reach + dh * (kh - 1), ow, width), part.dtype)
    # If kernel rows cover every row of pixels, the first kernel rows write instead of adding.
    first = sh if dh == 1 and sh <= kh else 0
    sums[:, :, reach + first - 1 if first else 0 :] = 0
    products = ops.xp.empty((groups, m, width), part.dtype)
    for a in range(kh):
        rows_product(ops, part, kernels[a], products, alone)
        target = sums[:, :, a * dh : a * dh + reach : sh]
        found = products.reshape(target.shape)
        if a < first:
            ops.xp.copyto(target, found)
        else:
            ops.xp.add(target, found, out=target)
    return sums


def _add_columns(ops: Ops, dx: Array, sums: Array, window: Window, first_row: int) -> None:
    """Add ``sums`` (groups, N, rows, W', kw·C/groups) to the pixels of dx inside the image."""
    groups, m, height, ow, _ = sums.shape
    _, h, w, _, cg = dx.shape
    kw, sw, dw = window.kernel[1], window.stride[1], window.dilation[1]
    top = first_row * window.stride[0] - window.pads[0][0]
    low, high = max(-top, 0), min(height, h - top)
    by_tap = sums.reshape(groups, m, height, ow, kw, cg).transpose(4, 1, 2, 3, 0, 5)
    if low >= high:
        return
    pixels, runs = dx[:, top + low : top + high], (0, 1, 2, 3, 4)
    if cg < _SHORT_RUN:
        # A row of pixels is the longer run, in a buffer that is contiguous along it.
        pixels = ops.xp.zeros((m, high - low, groups, cg, w), dx.dtype)
        pixels, runs = pixels.transpose(0, 1, 4, 2, 3), (0, 1, 3, 4, 2)
    for b in range(kw):
        left = b * dw - window.pads[1][0]
        start, stop = max(-(left // sw), 0), min(ow, (w - 1 - left) // sw + 1)
        if start < stop:
            met = pixels[:, :, left + start * sw : left + (stop - 1) * sw + 1 : sw]
            met, terms = met.transpose(runs), by_tap[b, :, low:high, start:stop]
            ops.xp.add(met, terms.transpose(runs), out=met)
    if cg < _SHORT_RUN:
        dx[:, top + low : top + high] += pixels
