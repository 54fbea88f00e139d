"""Convolution (cross-correlation) by blocked im2col and matrix products."""

from __future__ import annotations

from typing import Any

from singanet.ops.numpy.windows import Window, Windows, blocks
from singanet.types import Array, Shape


class Convolution(Windows):
    """x is (N, C, H, W), the weight (F, C/groups, kh, kw), y and dy (N, F, H', W')."""

    xp: Any

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
    ) -> Array:
        """y[n,f,i,j] = bias[f] + sum over c,a,b of weight[f,c,a,b] x[n,c,i·s+a·d,j·s+b·d]."""
        n, _, height, width = x.shape
        oh, ow = window.out_size(height, width)
        f = weight.shape[0]
        matrix = _weight_matrix(weight, groups)
        y: Array = self.xp.empty((n, oh, ow, f), x.dtype)
        for samples, rows in blocks(n, oh, self._row_bytes(x, weight, ow, groups)):
            columns = self.columns(self.padded(x[samples], window.pads), window, rows, ow, groups)
            part = y[samples, rows].reshape(-1, groups, f // groups).transpose(1, 0, 2)
            self.xp.matmul(columns, matrix, out=part)
        if bias is not None:
            self.xp.add(y, bias, out=y)
        return y.transpose(0, 3, 1, 2)

    def conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
    ) -> Array:
        """The gradient of the weight, in the weight's shape."""
        f, cg, kh, kw = weight_shape
        n, _, oh, ow = dy.shape
        rows_of_dy = self.channels_last(dy)
        total = self.xp.zeros((groups, kh * kw * cg, f // groups), dy.dtype)
        for samples, rows in blocks(n, oh, ow * groups * kh * kw * cg * dy.itemsize):
            columns = self.columns(self.padded(x[samples], window.pads), window, rows, ow, groups)
            part = rows_of_dy[samples, rows].reshape(-1, groups, f // groups).transpose(1, 0, 2)
            total += self.xp.matmul(columns.transpose(0, 2, 1), part)
        taps = total.reshape(groups, kh, kw, cg, f // groups).transpose(0, 4, 3, 1, 2)
        gradient: Array = self.xp.ascontiguousarray(taps).reshape(weight_shape)
        return gradient

    def conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
    ) -> Array:
        """The gradient of x: columns of gradients added where they came from."""
        n, c, h, w = x_shape
        (top, bottom), (left, right) = window.pads
        f, cg, kh, kw = weight.shape
        oh, ow = dy.shape[2:]
        matrix = _weight_matrix(weight, groups).transpose(0, 2, 1)
        rows_of_dy = self.channels_last(dy)
        full = self.xp.zeros((n, top + h + bottom, left + w + right, c), dy.dtype)
        for samples, rows in blocks(n, oh, self._row_bytes(dy, weight, ow, groups)):
            part = rows_of_dy[samples, rows].reshape(-1, groups, f // groups).transpose(1, 0, 2)
            columns = self.xp.matmul(part, matrix)
            count = rows.stop - rows.start
            shape = (groups, samples.stop - samples.start, count, ow, kh * kw, cg)
            parts = columns.reshape(shape).transpose(4, 1, 2, 3, 0, 5)
            band = full[samples, rows.start * window.stride[0] :]
            for k, tap in enumerate(self.taps(band, window, (count, ow))):
                tap += parts[k].reshape(tap.shape)
        return full[:, top : top + h, left : left + w].transpose(0, 3, 1, 2)

    def channel_sum(self, dy: Array) -> Array:
        """The sum over samples and positions, (C,), for dy (N, C, H, W): a bias gradient."""
        # Two stages keep the partial sums short, which keeps float32 exact enough.
        rows = self.channels_last(dy)
        n, h, w, c = rows.shape
        total: Array = rows.reshape(n, h * w, c).sum(axis=1).sum(axis=0)
        return total

    @staticmethod
    def _row_bytes(x: Array, weight: Array, width: int, groups: int) -> int:
        _, cg, kh, kw = weight.shape
        return int(width * groups * cg * kh * kw * x.itemsize)


def _weight_matrix(weight: Array, groups: int) -> Array:
    """The weight as (groups, kh·kw·C/groups, F/groups)."""
    f, cg, kh, kw = weight.shape
    by_group = weight.reshape(groups, f // groups, cg, kh, kw).transpose(0, 3, 4, 2, 1)
    return by_group.reshape(groups, kh * kw * cg, f // groups)
