"""Convolution (cross-correlation) by blocked im2col and matrix products."""

from __future__ import annotations

from collections.abc import Iterator

from singanet.base.addresses import steps
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.conv.products import (
    laid_out,
    rows_product,
    summed_product,
)
from singanet.ops.numpy.lanes import sum_of
from singanet.ops.numpy.windows import as_columns, band_by_group, blocks, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape


@kernel(half="lift")
def conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array:
    f = len(weight)
    oh, ow = window.out_size(*x.shape[2:])
    kernels = laid_out(ops, _matrices(weight, groups), len(x) * oh * ow)
    y: Array = ops.xp.empty((len(x), oh, ow, f), x.dtype)
    for lane in ops.lanes(len(x), y.size * weight[0].size):
        mine = y[lane]
        pieces = _column_blocks(ops, x[lane], weight.shape, window, groups)
        for samples, rows, columns in pieces:
            part = mine[samples, rows]
            rows_product(ops, columns, kernels, by_group(part, groups), len(x) == 1)
            if bias is not None:
                ops.xp.add(part, bias, out=part)
    return y.transpose(0, 3, 1, 2)


@kernel(half="lift")
def conv2d_backward_weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array:
    f, cg, kh, kw = weight_shape
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * cg * kh * kw):
        total: Array | None = None
        for samples, rows, columns in _column_blocks(ops, x[lane], weight_shape, window, groups):
            part = by_group(ops.channels_last(dy[lane][samples, :, rows]), groups)
            product = summed_product(ops, columns, part, len(x) == 1)
            total = product if total is None else ops.xp.add(total, product, out=total)
        totals += [] if total is None else [total]
    if not totals:
        return ops.xp.zeros(weight_shape, dy.dtype)
    taps = sum_of(ops, totals).reshape(groups, f // groups, kh, kw, cg).transpose(0, 1, 4, 2, 3)
    return ops.xp.ascontiguousarray(taps).reshape(weight_shape)


def _column_blocks(
    ops: Ops, x: Array, weight_shape: Shape, window: Window, groups: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Samples, output rows and their columns, block by block in bounded scratch."""
    f, cg, kh, kw = weight_shape
    oh, ow = window.out_size(*x.shape[2:])
    row_bytes = ow * max(groups * cg * kh * kw, f) * x.itemsize
    # A block smaller than the weight would spend its time moving the weight.
    weight_bytes = f * cg * kh * kw * x.itemsize
    for samples, rows in blocks(x.shape[0], oh, row_bytes, scratch_bytes(ops, least=weight_bytes)):
        full = band_by_group(ops, x[samples], window, rows, groups)
        yield samples, rows, as_columns(ops, full, window, (rows.stop - rows.start, ow))


def by_group(part: Array, groups: int) -> Array:
    """(N, H', W', F) as a view (groups, N·H'·W', F/groups)."""
    n, h, w, f = part.shape
    return part.reshape(n * h * w, groups, f // groups).transpose(1, 0, 2)


def _matrices(weight: Array, groups: int) -> Array:
    """The weight as (groups, kh·kw·C/groups, F/groups), to meet the columns.

    Its axes are moved within what lies together: moving the kernels to the end would take as
    long as the products where images are small.
    """
    f, cg, kh, kw = weight.shape
    split = weight.reshape(groups, f // groups, cg, kh, kw)
    _, by_kernel, by_channel, *_ = steps(split)
    if by_kernel < by_channel:
        # The weight of a gradient, whose first axes are swapped.
        return split.transpose(0, 3, 4, 2, 1).reshape(groups, kh * kw * cg, f // groups)
    rows: Array = split.transpose(0, 1, 3, 4, 2).reshape(groups, f // groups, kh * kw * cg)
    return rows.transpose(0, 2, 1)
