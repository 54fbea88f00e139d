"""The gradient of a convolution's input by products first and sums after."""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.conv.columns import by_group
from singanet.ops.numpy.conv.products import laid_out, rows_product
from singanet.ops.numpy.windows import blocks, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape

_SHORT_RUN = 8
"""Channels below which adding them up one row of pixels at a time is faster."""


@kernel(half="lift")
def scatter(
    ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_data`: products first, sums after.

    They are summed over the kernel's rows first, in long runs, then over its columns.
    """
    n, c, h, w = x_shape
    f, cg, kh, kw = weight.shape
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
    """The products of ``part`` (groups, N·H'·W', F/groups) with each kernel row's ``kernels``.

    Added where they meet one row of pixels, as (groups, N, rows, W', kw·C/groups).
    """
    (groups, m, _), (n, height, ow) = part.shape, size
    kh, sh, dh = window.kernel[0], window.stride[0], window.dilation[0]
    reach, width = (height - 1) * sh + 1, kernels[0].shape[1] * kernels[0].shape[3]
    sums: Array = ops.xp.empty((groups, n, reach + dh * (kh - 1), ow, width), part.dtype)
    # Where kernel rows meet every row of pixels, the first of them write and do not add.
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
    """Add ``sums`` (groups, N, rows, W', kw·C/groups) to the pixels of dx that exist."""
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
        # A row of pixels is the longer run, on memory of its own where it lies together.
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
