"""Max pooling of images."""

from __future__ import annotations

from singanet.layers.context import Context
from singanet.layers.pooling2d import Pooling2D
from singanet.types import Array


class MaxPooling2D(Pooling2D):
    """The largest value of each window; padding never wins, and of equal values the first does."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C, H', W'); keeps one small integer an output."""
        y, where = ctx.ops.max_pool(x, self.window, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes to the position of its maximum."""
        saved = ctx.saved
        return ctx.ops.max_pool_backward(dy, saved["where"], saved["x_shape"], self.window), {}
