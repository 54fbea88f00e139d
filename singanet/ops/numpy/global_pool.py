"""Pooling over all positions of a sample."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.types import Array, Shape


class GlobalPooling:
    """x is (N, C, ...) with one or more axes of positions, y and dy are (N, C)."""

    xp: Any

    def global_avg_pool(self, x: Array) -> Array:
        """The mean of each channel."""
        # An axis at a time keeps the partial sums short, which keeps float32 exact enough.
        total = x
        while total.ndim > 2:
            total = total.sum(axis=-1)
        return total / prod(x.shape[2:])

    def global_avg_pool_backward(self, dy: Array, x_shape: Shape) -> Array:
        """Each gradient shared equally by the positions."""
        share = dy / prod(x_shape[2:])
        full = self.xp.empty((x_shape[0], prod(x_shape[2:]), x_shape[1]), dy.dtype)
        self.xp.copyto(full, share[:, None])
        return _channels_first(full, x_shape)

    def global_max_pool(self, x: Array, keep: bool) -> tuple[Array, Array | None]:
        """The largest value of each channel, and with ``keep`` its first position."""
        flat = x.reshape(*x.shape[:2], prod(x.shape[2:]))
        return flat.max(axis=2), flat.argmax(axis=2) if keep else None

    def global_max_pool_backward(self, dy: Array, where: Array, x_shape: Shape) -> Array:
        """Each gradient goes to the position that held the maximum."""
        positions = self.xp.arange(prod(x_shape[2:]))[:, None]
        full = self.xp.where(positions == where[:, None], dy[:, None], 0)
        return _channels_first(full, x_shape)


def _channels_first(full: Array, x_shape: Shape) -> Array:
    """(N, positions, C) as an (N, C, ...) view, in the memory order of the image kernels."""
    n, c, *sizes = x_shape
    last = full.reshape(n, *sizes, c)
    return last.transpose(0, last.ndim - 1, *range(1, last.ndim - 1))
