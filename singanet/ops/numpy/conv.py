"""Convolution (cross-correlation) by blocked im2col and matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from singanet.ops.numpy.conv_narrow import NarrowConvolution
from singanet.ops.numpy.depthwise import DepthwiseConvolution
from singanet.ops.numpy.windows import Window, blocks
from singanet.types import Array, Shape


class Convolution(DepthwiseConvolution, NarrowConvolution):
    """x is (N, C, H, W), the weight (F, C/groups, kh, kw), y and dy (N, F, H', W').

    A group for every channel goes to the depthwise kernels, few kernels to the narrow ones.
    """

    xp: Any

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
    ) -> Array:
        """y[n,f,i,j] = bias[f] + sum over c,a,b of weight[f,c,a,b] x[n,c,i·s+a·d,j·s+b·d]."""
        f, _, kh, kw = weight.shape
        if 1 < groups == x.shape[1]:
            by_channel = weight.reshape(groups, f // groups, kh, kw)
            return self.depthwise_conv2d(x, by_channel, bias, window)
        if self.is_narrow(x.shape, weight.shape, window, groups):
            return self.narrow_conv2d(x, weight, bias, window, groups)
        oh, ow = window.out_size(*x.shape[2:])
        kernels = self.laid_out(_matrices(weight, groups), len(x) * oh * ow)
        y: Array = self.xp.empty((len(x), oh, ow, f), x.dtype)
        work = y.size * weight[0].size if self.is_stacked(kernels) else 0
        for lane in self.lanes(len(x), work):
            mine = y[lane]
            pieces = self._column_blocks(x[lane], weight.shape, window, groups)
            for samples, rows, columns in pieces:
                part = mine[samples, rows]
                self.rows_product(columns, kernels, by_group(part, groups))
                if bias is not None:
                    self.xp.add(part, bias, out=part)
        return y.transpose(0, 3, 1, 2)

    def conv2d_constant(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        window: Window,
        groups: int = 1,
        relu: bool = False,
        add: Array | None = None,
    ) -> Array:
        """`conv2d` with a weight that never changes, plus ``add``, and then its maximum with 0."""
        y = self.conv2d(x, weight, bias, window, groups)
        if add is not None:
            self.xp.add(y, add, out=y)
        return self.xp.maximum(y, 0, out=y) if relu else y

    def conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
    ) -> Array:
        """The gradient of the weight, in the weight's shape."""
        f, cg, kh, kw = weight_shape
        if 1 < groups == x.shape[1]:
            by_channel = (groups, f // groups, kh, kw)
            taps = self.depthwise_conv2d_backward_weights(x, dy, by_channel, window)
            return taps.reshape(weight_shape)
        if self.is_narrow(x.shape, weight_shape, window, groups):
            return self.narrow_conv2d_backward_weights(x, dy, weight_shape, window, groups)
        work = dy.size * cg * kh * kw if self.sums_are_stacked(f * cg * kh * kw) else 0
        totals: list[Array] = []
        for lane in self.lanes(len(x), work):
            total: Array | None = None
            for samples, rows, columns in self._column_blocks(
                x[lane], weight_shape, window, groups
            ):
                part = by_group(self.channels_last(dy[lane][samples, :, rows]), groups)
                product = self.summed_product(columns, part)
                total = product if total is None else self.xp.add(total, product, out=total)
            totals += [] if total is None else [total]
        if not totals:
            return self.xp.zeros(weight_shape, dy.dtype)
        total = self.total(totals)
        taps = total.reshape(groups, f // groups, kh, kw, cg).transpose(0, 1, 4, 2, 3)
        return self.xp.ascontiguousarray(taps).reshape(weight_shape)

    def channel_sum(self, dy: Array) -> Array:
        """The sum over samples and positions, (C,), for dy (N, C, H, W): a bias gradient."""
        n, c, h, w = dy.shape
        # Products with ones run ten times as fast as sums along an axis; one a sample keeps the
        # partial sums short, which keeps float32 exact enough.
        ones = self.xp.ones((1, h * w), dy.dtype)
        if dy.flags.c_contiguous:
            sums = self.xp.matmul(ones, dy.reshape(n, c, h * w).transpose(0, 2, 1))
        else:
            sums = self.xp.matmul(ones, self.channels_last(dy).reshape(n, h * w, c))
        return sums.sum(axis=(0, 1))

    def _column_blocks(
        self, x: Array, weight_shape: Shape, window: Window, groups: int
    ) -> Iterator[tuple[slice, slice, Array]]:
        """Samples, output rows and their columns, block by block in bounded scratch."""
        f, cg, kh, kw = weight_shape
        oh, ow = window.out_size(*x.shape[2:])
        row_bytes = ow * max(groups * cg * kh * kw, f) * x.itemsize
        # A block smaller than the weight would spend its time moving the weight.
        weight_bytes = f * cg * kh * kw * x.itemsize
        for samples, rows in blocks(x.shape[0], oh, row_bytes, self.scratch(least=weight_bytes)):
            full = self.band_by_group(x[samples], window, rows, groups)
            yield samples, rows, self.columns(full, window, (rows.stop - rows.start, ow))


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
    if split.strides[1] < split.strides[2]:
        # The weight of a gradient, whose first axes are swapped.
        return split.transpose(0, 3, 4, 2, 1).reshape(groups, kh * kw * cg, f // groups)
    rows: Array = split.transpose(0, 1, 3, 4, 2).reshape(groups, f // groups, kh * kw * cg)
    return rows.transpose(0, 2, 1)
