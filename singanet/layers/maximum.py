"""The largest of several inputs."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers.combine import Combine
from singanet.layers.context import Context
from singanet.types import Array


class Maximum(Combine):
    """y = the largest of the inputs, element by element; of equal ones the first counts."""

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The maximum; which input held it is kept, one small integer an element."""
        y = self.combined(ctx, "maximum", x)
        if ctx.keep:
            ctx.save(where=ctx.ops.first_equal(y, x), shapes=[part.shape for part in x])
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """``dy`` where the input held the maximum."""
        where, shapes = ctx.saved["where"], ctx.saved["shapes"]
        parts = [ctx.ops.select(dy, where, k) for k in range(len(shapes))]
        return self.spread_back(ctx, parts, shapes), {}
