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
        kernels = _along_rows(xp, weight, out[1])
        y: Array = xp.empty((n, *out, c, weight.shape[1]), x.dtype)
        full = self.padded(x, window.pads)
        for part, views in self._bands(full, y, window):
            xp.multiply(views[0][..., None], kernels[0], out=part)
            product = xp.empty_like(part)
            for view, kernel in zip(views[1:], kernels[1:], strict=True):
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
            # Contiguous also where the block is a band of rows, so that it folds to a matrix.
            product = xp.empty(part.shape, part.dtype)
            ones = xp.ones((1, product.size // (c * m)), dy.dtype)
            for k, view in enumerate(views):
                xp.multiply(view[..., None], part, out=product)
                total[k] += xp.matmul(ones, product.reshape(-1, c * m)).reshape(c, m)
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
        kernels = _along_rows(xp, weight, dy.shape[3])
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
        # Twice, for the outputs of a block and the products that are added to them.
        for samples, rows in blocks(n, height, 2 * width * c * m * outputs.itemsize):
            band = full[samples, rows.start * window.stride[0] :]
            views = self.taps(band, window, (rows.stop - rows.start, width))
            yield outputs[samples, rows], list(views)


def _along_rows(xp: Any, weight: Array, width: int) -> Array:
    """The weight as (kh·kw, W', C, M), the same for each of the W' outputs of a row.

    Laid out so, a product with a row of pixels is one long run instead of one a pixel.
    """
    c, m, kh, kw = weight.shape
    kernels: Array = xp.empty((kh * kw, width, c, m), weight.dtype)
    kernels[...] = weight.reshape(c, m, kh * kw).transpose(2, 0, 1)[:, None]
    return kernels
