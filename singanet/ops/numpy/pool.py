"""Pooling over windows of an image."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.numpy.windows import Pair, Window, Windows
from singanet.types import Array, Shape


class Pooling(Windows):
    """x is (N, C, H, W), y and dy (N, C, H', W'); padding never counts."""

    xp: Any

    def max_pool(self, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
        """The largest value of each window, and with ``keep`` which kernel position held it.

        Of equal values the first in row-major order wins. A window that meets only padding
        gives -inf.
        """
        out = window.out_size(*x.shape[2:])
        lowest = float("-inf")
        full = self.padded(x, window.pads, lowest)
        views = list(self.taps(full, window, out))
        y: Array = self.xp.array(views[0], order="C")
        for view in views[1:]:
            self.xp.maximum(y, view, out=y)
        if not keep:
            return y.transpose(0, 3, 1, 2), None
        where: Array = self.xp.zeros(y.shape, np.min_scalar_type(len(views) - 1))
        for k in range(len(views) - 1, -1, -1):
            self.xp.copyto(where, where.dtype.type(k), where=self.xp.equal(views[k], y))
        return y.transpose(0, 3, 1, 2), where

    def max_pool_backward(self, dy: Array, where: Array, x_shape: Shape, window: Window) -> Array:
        """Each gradient goes to the position that held the maximum."""
        rows = self.channels_last(dy)
        full = self._zero_padded(dy, x_shape, window)
        for k, tap in enumerate(self.taps(full, window, (rows.shape[1], rows.shape[2]))):
            tap += self.xp.multiply(rows, self.xp.equal(where, k))
        return _inside(full, x_shape, window)

    def avg_pool(self, x: Array, window: Window) -> Array:
        """The mean over the part of each window that lies on the image."""
        out = window.out_size(*x.shape[2:])
        full = self.padded(x, window.pads)
        views = list(self.taps(full, window, out))
        y: Array = self.xp.array(views[0], order="C")
        for view in views[1:]:
            self.xp.add(y, view, out=y)
        self.xp.divide(y, self._counts(x.shape, window, out, x.dtype), out=y)
        return y.transpose(0, 3, 1, 2)

    def avg_pool_backward(self, dy: Array, x_shape: Shape, window: Window) -> Array:
        """Each gradient is shared equally by the window's positions on the image."""
        out = (dy.shape[2], dy.shape[3])
        counts = self._counts(x_shape, window, out, dy.dtype)
        share = self.xp.divide(self.channels_last(dy), counts)
        full = self._zero_padded(dy, x_shape, window)
        for tap in self.taps(full, window, out):
            tap += share
        return _inside(full, x_shape, window)

    def _zero_padded(self, dy: Array, x_shape: Shape, window: Window) -> Array:
        n, c, h, w = x_shape
        (top, bottom), (left, right) = window.pads
        zeros: Array = self.xp.zeros((n, top + h + bottom, left + w + right, c), dy.dtype)
        return zeros

    def _counts(self, x_shape: Shape, window: Window, out: Pair, dtype: Any) -> Array:
        """How many positions of each window lie on the image, (H', W', 1); at least 1."""
        sides = []
        for k, size in enumerate(x_shape[2:]):
            first = np.arange(out[k]) * window.stride[k] - window.pads[k][0]
            offsets = np.arange(window.kernel[k])
            position = first[:, None] + offsets
            sides.append(((position >= 0) & (position < size)).sum(axis=1))
        counts = np.maximum(np.outer(sides[0], sides[1]), 1)[:, :, None]
        there: Array = self.xp.asarray(counts.astype(dtype))
        return there


def _inside(full: Array, x_shape: Shape, window: Window) -> Array:
    """The image inside the padding, as an (N, C, H, W) view."""
    (top, _), (left, _) = window.pads
    h, w = x_shape[2:]
    return full[:, top : top + h, left : left + w].transpose(0, 3, 1, 2)
