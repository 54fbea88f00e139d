"""Convolution with few kernels, whose windows would cost more to copy than to multiply.

In channels-last memory the windows of one kernel row at pixels that lie kw apart touch without
overlapping: they are a matrix already, a view of the padded image. kw such views meet every pixel.
"""

from __future__ import annotations

from collections.abc import Iterator

from singanet.ops.numpy.windows import Window, Windows, blocks
from singanet.types import Array, Shape

_MOST_KERNELS = 16
_LEAST_CHANNELS = 8
_MOST_PADDING = 1.6
"""Padded pixels an output up to which this is faster: benchmarks/conv_kernels.py."""

_BLOCK_BYTES = 1 << 19
"""Of padded images, the products and their sums, which have to stay in the cache."""


class NarrowConvolution(Windows):
    """Windows of stride 1 without dilation or groups; shapes as in `Convolution`."""

    def is_narrow(self, x_shape: Shape, weight_shape: Shape, window: Window, groups: int) -> bool:
        """Whether these kernels serve the convolution, and are the faster ones."""
        (f, c, _, _), (height, width) = weight_shape, window.out_size(*x_shape[2:])
        plain = groups == 1 and window.stride == (1, 1) == window.dilation
        if not plain or not self.on_host or f > _MOST_KERNELS or c < _LEAST_CHANNELS:
            return False
        around = (height + window.kernel[0] - 1) * (width + window.kernel[1] - 1)
        return window.kernel[1] > 1 and around <= _MOST_PADDING * height * width

    def narrow_conv2d(self, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
        """See `conv2d`."""
        xp, (f, c, kh, kw) = self.xp, weight.shape
        matrices = weight.transpose(2, 3, 1, 0).reshape(kh, kw * c, f)
        oh, ow = window.out_size(*x.shape[2:])
        y: Array = xp.empty((len(x), oh, ow, f), x.dtype)
        for samples, rows, full in self._padded_bands(x, window, f):
            total, part = (xp.empty((*full.shape[:3], f), x.dtype) for _ in range(2))
            lines, more = (array.reshape(-1, f)[: _starts(full, window)] for array in (total, part))
            for a in range(kh):
                sums = more if a else lines
                for windows, pixels in _touching(full, a, window):
                    xp.matmul(windows, matrices[a], out=sums[pixels])
                if a:
                    xp.add(lines, more, out=lines)
            inside = total[:, : rows.stop - rows.start, :ow]
            if bias is None:
                xp.copyto(y[samples, rows], inside)
            else:
                xp.add(inside, bias, out=y[samples, rows])
        return y.transpose(0, 3, 1, 2)

    def narrow_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """See `conv2d_backward_weights`."""
        xp, (f, c, kh, kw) = self.xp, weight_shape
        total: Array = xp.zeros((kh, kw * c, f), dy.dtype)
        for samples, rows, full in self._padded_bands(x, window, f):
            # On the grid of padded pixels, zero where no window starts.
            slopes = self.padded(dy[samples, :, rows], ((0, kh - 1), (0, kw - 1)))
            slopes = slopes.reshape(-1, f)
            for a in range(kh):
                for windows, pixels in _touching(full, a, window):
                    total[a] += xp.matmul(windows.T, slopes[pixels])
        taps = total.reshape(kh, kw, c, f).transpose(3, 2, 0, 1)
        return xp.ascontiguousarray(taps)

    def _padded_bands(
        self, x: Array, window: Window, kernels: int
    ) -> Iterator[tuple[slice, slice, Array]]:
        """Samples, output rows, and the padded images (N, H, W, C) that these rows see."""
        height, width = window.out_size(*x.shape[2:])
        values = x.shape[1] + 2 * kernels
        row_bytes = (width + window.kernel[1] - 1) * values * x.itemsize
        for samples, rows in blocks(len(x), height, row_bytes, self.scratch(_BLOCK_BYTES)):
            yield samples, rows, self.band(x[samples], window, rows)


def _starts(full: Array, window: Window) -> int:
    """How many pixels of the padded images, counted through, a window can start at."""
    n, height, width, _ = full.shape
    return n * height * width - (window.kernel[0] - 1) * width - (window.kernel[1] - 1)


def _touching(full: Array, row: int, window: Window) -> Iterator[tuple[Array, slice]]:
    """Matrices (M, kw·C) of kernel row ``row`` of ``full``, and the pixels where they start.

    Windows that run over a border belong to pixels without an output.
    """
    width, c, kw = full.shape[2], full.shape[3], window.kernel[1]
    flat, starts = full.reshape(-1), _starts(full, window)
    for first in range(min(kw, starts)):
        count = (starts - first - 1) // kw + 1
        begin = (row * width + first) * c
        matrix = flat[begin : begin + count * kw * c].reshape(count, kw * c)
        yield matrix, slice(first, first + (count - 1) * kw + 1, kw)
