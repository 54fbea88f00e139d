"""The mean of several inputs."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers.combine import Combine
from singanet.layers.context import Context
from singanet.types import Array


class Average(Combine):
    """y = the sum of the k inputs divided by k."""

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The mean; no array is kept."""
        ctx.save(shapes=[part.shape for part in x])
        y = self.combined(ctx, "add", x)
        ctx.ops.multiply(y, 1.0 / len(x), out=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """``dy`` / k for every input."""
        shapes = ctx.saved["shapes"]
        share = ctx.ops.multiply(dy, 1.0 / len(shapes))
        return self.spread_back(ctx, [share] * len(shapes), shapes), {}
