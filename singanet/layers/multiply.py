"""The product of several inputs."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers.combine import Combine
from singanet.layers.context import Context
from singanet.types import Array


class Multiply(Combine):
    """y = the product of the inputs, element by element."""

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The product; the inputs are kept."""
        ctx.save(x=list(x))
        return self.combined(ctx, "multiply", x)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """``dy`` times the other inputs; no division, so zeros are no special case."""
        x = ctx.saved["x"]
        parts = [
            ctx.ops.combine("multiply", [dy, *x[:k], *x[k + 1 :]], dy.shape) for k in range(len(x))
        ]
        return self.spread_back(ctx, parts, [part.shape for part in x]), {}
