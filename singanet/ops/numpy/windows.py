"""Sliding windows over images: padding, blocks of bounded scratch, im2col and its reverse.

Inside the kernels images are channels-last in memory, so that windows are copied in long runs
and matrix products need no transposition; outside they are NCHW, as views of that memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from singanet.types import Array, Shape

SCRATCH_BYTES = 1 << 21
"""Scratch for the columns of one block; small enough to stay in a core's share of the cache."""

Pads = tuple[tuple[int, int], tuple[int, int]]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window: all values as (height, width)."""

    kernel: Pair
    stride: Pair
    pads: Pads
    dilation: Pair = (1, 1)

    def out_size(self, height: int, width: int) -> Pair:
        """floor((in + pads - extent) / stride) + 1 for each axis."""
        sizes = []
        for k, size in enumerate((height, width)):
            extent = self.dilation[k] * (self.kernel[k] - 1) + 1
            sizes.append((size + sum(self.pads[k]) - extent) // self.stride[k] + 1)
        return sizes[0], sizes[1]


class Windows:
    """Helpers that the convolution and pooling kernels share."""

    xp: Any

    def channels_last(self, x: Array) -> Array:
        """``x`` (N, C, H, W) as contiguous (N, H, W, C); no copy where memory lies so already."""
        rows: Array = self.xp.ascontiguousarray(x.transpose(0, 2, 3, 1))
        return rows

    def padded(self, x: Array, pads: Pads, value: float = 0.0) -> Array:
        """``x`` (N, C, H, W) as (N, H + pads, W + pads, C), the border filled with ``value``."""
        (top, bottom), (left, right) = pads
        if not (top or bottom or left or right):
            return self.channels_last(x)
        n, c, h, w = x.shape
        full: Array = self.xp.empty((n, top + h + bottom, left + w + right, c), x.dtype)
        full[:, :top] = value
        full[:, top + h :] = value
        full[:, top : top + h, :left] = value
        full[:, top : top + h, left + w :] = value
        full[:, top : top + h, left : left + w] = x.transpose(0, 2, 3, 1)
        return full

    def taps(self, full: Array, window: Window, out: Pair) -> Iterator[Array]:
        """For each kernel position the (N, H', W', C) view of ``full`` it meets, row-major."""
        for i in range(window.kernel[0]):
            for j in range(window.kernel[1]):
                top, left = i * window.dilation[0], j * window.dilation[1]
                yield full[
                    :,
                    top : top + (out[0] - 1) * window.stride[0] + 1 : window.stride[0],
                    left : left + (out[1] - 1) * window.stride[1] + 1 : window.stride[1],
                ]

    def columns(self, full: Array, window: Window, rows: slice, width: int, groups: int) -> Array:
        """Windows of output rows ``rows`` as (groups, N·rows·width, kh·kw·C/groups).

        The matrix is a view of freshly copied memory whose order is the one with the longer
        runs: along a window's row of channels, or along the row of outputs.
        """
        n, _, _, c = full.shape
        (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
        count, cg = rows.stop - rows.start, c // groups
        by_n, by_h, by_w, by_c = full.strides
        start = full[:, rows.start * sh :]
        shape: Shape = (groups, n, count, width, kh, kw, cg)
        strides = (cg * by_c, by_n, by_h * sh, by_w * sw, by_h * dh, by_w * dw, by_c)
        windows = self.xp.lib.stride_tricks.as_strided(start, shape, strides)
        m, k = n * count * width, kh * kw * cg
        if (kw * cg if dw == 1 else cg) >= width:
            copied: Array = self.xp.ascontiguousarray(windows).reshape(groups, m, k)
            return copied
        taps_first = self.xp.ascontiguousarray(windows.transpose(0, 4, 5, 6, 1, 2, 3))
        matrix: Array = taps_first.reshape(groups, k, m).transpose(0, 2, 1)
        return matrix


def blocks(n: int, height: int, bytes_per_row: int) -> Iterator[tuple[slice, slice]]:
    """Slices of samples and of output rows whose columns fit the scratch.

    Whole samples together where several fit, else one sample in bands of rows.
    """
    per_sample = max(1, height * bytes_per_row)
    if per_sample <= SCRATCH_BYTES:
        step = SCRATCH_BYTES // per_sample
        for first in range(0, n, step):
            yield slice(first, min(n, first + step)), slice(0, height)
        return
    band = max(1, SCRATCH_BYTES // bytes_per_row)
    for sample in range(n):
        for top in range(0, height, band):
            yield slice(sample, sample + 1), slice(top, min(height, top + band))
