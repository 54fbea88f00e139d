"""Convolution of every channel with kernels of its own, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from singanet.ops.numpy.windows import Window, Windows, blocks
from singanet.types import Array, Shape


class DepthwiseConvolution(Windows):
    """x is (N, C, H, W), the weight (C, M, kh, kw), y and dy (N, C·M, H', W').

    No columns are laid out, so the scratch of a block is a few of its outputs, and the work is
    multiplications of whole arrays.
    """

    xp: Any

    def depthwise_conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window
    ) -> Array:
        """y[n,cM+m,i,j] = bias[cM+m] + sum over a,b of weight[c,m,a,b] x[n,c,i·s+a·d,j·s+b·d]."""
        xp = self.xp
        n, c = x.shape[:2]
        out = window.out_size(*x.shape[2:])
        kernels = _by_tap(xp, weight)
        y: Array = xp.zeros((n, *out, c, weight.shape[1]), x.dtype)
        full = self.padded(x, window.pads)
        for part, views in self._bands(full, y, window):
            product = xp.empty_like(part)
            for view, kernel in zip(views, kernels, strict=True):
                xp.multiply(view[..., None], kernel, out=product)
                part += product
        flat = y.reshape(n, *out, c * weight.shape[1])
        if bias is not None:
            xp.add(flat, bias, out=flat)
        return flat.transpose(0, 3, 1, 2)

    def depthwise_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """The gradient of the weight, in the weight's shape."""
        xp = self.xp
        c, m, kh, kw = weight_shape
        rows = self._by_multiple(dy, m)
        total = xp.zeros((kh * kw, c, m), dy.dtype)
        full = self.padded(x, window.pads)
        for part, views in self._bands(full, rows, window):
            product = xp.empty_like(part)
            for k, view in enumerate(views):
                xp.multiply(view[..., None], part, out=product)
                # A row at a time keeps the partial sums short, which keeps float32 exact enough.
                total[k] += product.sum(axis=2).sum(axis=(0, 1))
        gradient: Array = xp.ascontiguousarray(total.transpose(1, 2, 0)).reshape(weight_shape)
        return gradient

    def depthwise_conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """The gradient of x, of shape ``x_shape``."""
        xp = self.xp
        n, c, h, w = x_shape
        (top, bottom), (left, right) = window.pads
        rows = self._by_multiple(dy, weight.shape[1])
        full = xp.zeros((n, top + h + bottom, left + w + right, c), dy.dtype)
        kernels = _by_tap(xp, weight)
        for part, views in self._bands(full, rows, window):
            product = xp.empty_like(part)
            for view, kernel in zip(views, kernels, strict=True):
                xp.multiply(part, kernel, out=product)
                view += product[..., 0] if product.shape[-1] == 1 else product.sum(axis=-1)
        return full[:, top : top + h, left : left + w].transpose(0, 3, 1, 2)

    def _by_multiple(self, dy: Array, m: int) -> Array:
        """``dy`` as (N, H', W', C, M)."""
        rows = self.channels_last(dy)
        return rows.reshape(*rows.shape[:3], rows.shape[3] // m, m)

    def _bands(
        self, full: Array, outputs: Array, window: Window
    ) -> Iterator[tuple[Array, list[Array]]]:
        """Blocks of ``outputs`` (N, H', W', C, M), each with the view of ``full`` for each tap."""
        n, height, width, c, m = outputs.shape
        for samples, rows in blocks(n, height, width * c * m * outputs.itemsize):
            band = full[samples, rows.start * window.stride[0] :]
            views = self.taps(band, window, (rows.stop - rows.start, width))
            yield outputs[samples, rows], list(views)


def _by_tap(xp: Any, weight: Array) -> Array:
    """The weight as (kh·kw, C, M), for products with channels-last images."""
    c, m = weight.shape[:2]
    kernels: Array = xp.ascontiguousarray(weight.reshape(c, m, -1).transpose(2, 0, 1))
    return kernels
