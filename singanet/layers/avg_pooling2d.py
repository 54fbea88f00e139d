"""Average pooling of images."""

from __future__ import annotations

from singanet.layers.context import Context
from singanet.layers.pooling2d import Pooling2D
from singanet.types import Array


class AvgPooling2D(Pooling2D):
    """The mean of each window over the positions that lie on the image; padding is not counted."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C, H', W'); keeps no array."""
        ctx.save(x_shape=x.shape)
        return ctx.ops.avg_pool(x, self.window)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by the positions of its window."""
        return ctx.ops.avg_pool_backward(dy, ctx.saved["x_shape"], self.window), {}
