"""Pooling over windows of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from singanet.ops.numpy.windows import Pair, Window, Windows, blocks, meetings
from singanet.types import Array, Shape

_BLOCK_BYTES = 1 << 19
"""Of the images; a block's outputs are gone over once for each kernel position."""


class Pooling(Windows):
    """x is (N, C, H, W), y and dy (N, C, H', W'); padding never counts."""

    def max_pool(self, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
        """The largest value of each window, and with ``keep`` which kernel position held it.

        Of equal values the first in row-major order wins. A window that meets only padding
        gives -inf.
        """
        xp, n, c = self.xp, x.shape[0], x.shape[1]
        out = window.out_size(*x.shape[2:])
        y: Array = xp.full((n, *out, c), float("-inf"), x.dtype)
        where: Array | None = None
        if keep:
            where = xp.zeros(y.shape, np.min_scalar_type(window.kernel[0] * window.kernel[1] - 1))
        for samples in _sample_blocks(x.shape, x.itemsize, self.scratch(_BLOCK_BYTES)):
            rows = self.channels_last(x[samples])
            for k, pixels, outputs in meetings(window, x.shape[2:], out):
                best, given = y[samples][outputs], rows[pixels]
                if where is not None and k:
                    # The positions rise, so the largest that was better than all before wins;
                    # selecting with a mask would take five times as long.
                    better = xp.multiply(xp.greater(given, best), k, dtype=where.dtype)
                    xp.maximum(where[samples][outputs], better, out=where[samples][outputs])
                xp.maximum(best, given, out=best)
        return y.transpose(0, 3, 1, 2), where

    def max_pool_backward(self, dy: Array, where: Array, x_shape: Shape, window: Window) -> Array:
        """Each gradient goes to the position that held the maximum."""
        xp, (n, c, h, w) = self.xp, x_shape
        disjoint = all(s >= k for s, k in zip(window.stride, window.kernel, strict=True))
        dx: Array = xp.zeros((n, h, w, c), dy.dtype)
        for samples in _sample_blocks(x_shape, dy.itemsize, self.scratch(_BLOCK_BYTES)):
            rows, target = self.channels_last(dy[samples]), dx[samples]
            for k, pixels, outputs in meetings(window, (h, w), dy.shape[2:]):
                mine = xp.equal(where[samples][outputs], k)
                if disjoint:
                    xp.multiply(rows[outputs], mine, out=target[pixels])
                else:
                    target[pixels] += xp.multiply(rows[outputs], mine)
        return dx.transpose(0, 3, 1, 2)

    def avg_pool(self, x: Array, window: Window) -> Array:
        """The mean over the part of each window that lies on the image; 0 where none does."""
        xp, n, c = self.xp, x.shape[0], x.shape[1]
        out = window.out_size(*x.shape[2:])
        y: Array = xp.zeros((n, *out, c), x.dtype)
        counts = _counts(xp, x.shape, window, out, x.dtype)
        for samples in _sample_blocks(x.shape, x.itemsize, self.scratch(_BLOCK_BYTES)):
            rows = self.channels_last(x[samples])
            for _, pixels, outputs in meetings(window, x.shape[2:], out):
                total = y[samples][outputs]
                xp.add(total, rows[pixels], out=total)
            xp.divide(y[samples], counts, out=y[samples])
        return y.transpose(0, 3, 1, 2)

    def avg_pool_backward(self, dy: Array, x_shape: Shape, window: Window) -> Array:
        """Each gradient is shared equally by the window's positions on the image."""
        xp, (n, c, h, w) = self.xp, x_shape
        out = (dy.shape[2], dy.shape[3])
        counts = _counts(xp, x_shape, window, out, dy.dtype)
        dx: Array = xp.zeros((n, h, w, c), dy.dtype)
        for samples in _sample_blocks(x_shape, dy.itemsize, self.scratch(_BLOCK_BYTES)):
            share = xp.divide(self.channels_last(dy[samples]), counts)
            for _, pixels, outputs in meetings(window, (h, w), out):
                dx[samples][pixels] += share[outputs]
        return dx.transpose(0, 3, 1, 2)


def _sample_blocks(x_shape: Shape, itemsize: int, scratch: int) -> Iterator[slice]:
    n, c, h, w = x_shape
    for samples, _ in blocks(n, 1, c * h * w * itemsize, scratch):
        yield samples


def _counts(xp: Any, x_shape: Shape, window: Window, out: Pair, dtype: Any) -> Array:
    """How many positions of each window lie on the image, (H', W', 1); at least 1."""
    sides = []
    for k, size in enumerate(x_shape[2:]):
        first = np.arange(out[k]) * window.stride[k] - window.pads[k][0]
        position = first[:, None] + np.arange(window.kernel[k])
        sides.append(((position >= 0) & (position < size)).sum(axis=1))
    counts = np.maximum(np.outer(sides[0], sides[1]), 1)[:, :, None]
    return xp.asarray(counts.astype(dtype))
