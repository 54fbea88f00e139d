"""Kernels with a number a channel."""

from __future__ import annotations

from typing import Any

from singanet.types import Array


class Channelwise:
    """x is (N, C, ...); parameters are (C,), or (1,) for one number over all channels."""

    xp: Any

    def scale(self, x: Array, gamma: Array, beta: Array | None) -> Array:
        """gamma x + beta."""
        y: Array = self.xp.multiply(x, _spread(x, gamma))
        if beta is not None:
            self.xp.add(y, _spread(x, beta), out=y)
        return y

    def prelu(self, x: Array, a: Array) -> Array:
        """x where it is positive, else a x."""
        return self.xp.where(x > 0, x, x * _spread(x, a))

    def prelu_backward(self, dy: Array, x: Array, a: Array) -> tuple[Array, Array]:
        """(dx, da)."""
        positive = x > 0
        dx = self.xp.where(positive, dy, dy * _spread(x, a))
        da = self.channel_total(self.xp.where(positive, 0, dy * x))
        return dx, da if a.shape == da.shape else da.sum(keepdims=True)

    def channel_total(self, values: Array) -> Array:
        """The sum over all axes but the channels, (C,)."""
        # An axis at a time keeps the partial sums short, which keeps float32 exact enough.
        while values.ndim > 2:
            values = values.sum(axis=-1)
        return values.sum(axis=0)


def _spread(x: Array, values: Array) -> Array:
    """(C,) shaped so that it spreads over ``x``."""
    return values.reshape(-1, *[1] * (x.ndim - 2))
