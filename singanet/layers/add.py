"""The sum of several inputs that may be spread."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers.combine import Combine
from singanet.layers.context import Context
from singanet.types import Array


class Add(Combine):
    """y = the sum of the inputs; `Merge` is SINGA's, for inputs of one shape."""

    can_relu = True

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The sum; no array is kept, but with relu the output."""
        y = self.combined(ctx, "add", x)
        ctx.save(shapes=[part.shape for part in x], y=y if ctx.relu else None)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """``dy`` for every input."""
        if ctx.relu:
            dy = ctx.ops.activation_backward("relu", dy, ctx.saved["y"])
        shapes = ctx.saved["shapes"]
        return self.spread_back(ctx, [dy] * len(shapes), shapes), {}
