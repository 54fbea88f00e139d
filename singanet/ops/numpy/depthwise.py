"""Convolution of every channel with kernels of its own, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from singanet.ops.numpy.windows import Window, Windows, blocks, meetings
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
        xp, (n, c), m = self.xp, x.shape[:2], weight.shape[1]
        out = window.out_size(*x.shape[2:])
        kernels = _along_rows(xp, weight, out[1])
        y: Array = xp.empty((n, *out, c * m), x.dtype)
        for samples, rows, views in self._bands(x, window, m):
            part = y[samples, rows]
            sums = part.reshape(*part.shape[:3], c, m)
            xp.multiply(next(views)[..., None], kernels[0], out=sums)
            product = xp.empty_like(sums)
            for view, kernel in zip(views, kernels[1:], strict=True):
                xp.multiply(view[..., None], kernel, out=product)
                sums += product
            if bias is not None:
                xp.add(part, bias, out=part)
        return y.transpose(0, 3, 1, 2)

    def depthwise_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """The gradient of the weight, in the weight's shape."""
        xp = self.xp
        c, m, kh, kw = weight_shape
        total = xp.zeros((kh * kw, c, m), dy.dtype)
        for samples, rows, views in self._bands(x, window, m):
            given = self.channels_last(dy[samples, :, rows])
            part = given.reshape(*given.shape[:3], c, m)
            # Contiguous also where the block is a band of rows, so that it folds to a matrix.
            product = xp.empty(part.shape, part.dtype)
            ones = xp.ones((1, product.size // (c * m)), dy.dtype)
            for k, view in enumerate(views):
                xp.multiply(view[..., None], part, out=product)
                total[k] += xp.matmul(ones, product.reshape(-1, c * m)).reshape(c, m)
        return xp.ascontiguousarray(total.transpose(1, 2, 0)).reshape(weight_shape)

    def depthwise_conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """The gradient of x, of shape ``x_shape``."""
        xp, m = self.xp, weight.shape[1]
        (n, c, h, w), (oh, ow) = x_shape, dy.shape[2:]
        kernels = _along_rows(xp, weight, ow)
        dx: Array = xp.zeros((n, h, w, c), dy.dtype)
        for samples, rows in blocks(n, oh, 2 * ow * c * m * dy.itemsize, self.scratch()):
            given = self.channels_last(dy[samples, :, rows])
            given = given.reshape(*given.shape[:3], c, m)
            for k, pixels, outputs in meetings(window, (h, w), (oh, ow), rows):
                product = xp.multiply(given[outputs], kernels[k][outputs[2]])
                dx[samples][pixels] += product[..., 0] if m == 1 else product.sum(axis=-1)
        return dx.transpose(0, 3, 1, 2)

    def _bands(
        self, x: Array, window: Window, m: int
    ) -> Iterator[tuple[slice, slice, Iterator[Array]]]:
        """Samples, output rows, and for each tap the pixels that these outputs meet."""
        n, c = x.shape[:2]
        height, width = window.out_size(*x.shape[2:])
        # Twice, for the outputs of a block and the products that are added to them.
        row_bytes = 2 * width * c * m * x.itemsize
        for samples, rows in blocks(n, height, row_bytes, self.scratch()):
            band = self.band(x[samples], window, rows)
            yield samples, rows, self.taps(band, window, (rows.stop - rows.start, width))


def _along_rows(xp: Any, weight: Array, width: int) -> Array:
    """The weight as (kh·kw, W', C, M), the same for each of the W' outputs of a row.

    Laid out so, a product with a row of pixels is one long run instead of one a pixel.
    """
    c, m, kh, kw = weight.shape
    kernels: Array = xp.empty((kh * kw, width, c, m), weight.dtype)
    kernels[...] = weight.reshape(c, m, kh * kw).transpose(2, 0, 1)[:, None]
    return kernels
