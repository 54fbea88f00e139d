"""A layer that lets arrays through and gradients not."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, Shapes


class StopGradient(Layer):
    """y = x, and no gradient goes to x.

    What only such layers read is not entered by backward: its parameters are not trained and its
    contexts not kept.
    """

    traits = Traits(moves_only=True, any_extent=True, masks="keeps", stops_gradient=True)

    def setup(self, in_shapes: Shapes) -> Shapes:
        """Any sample shape."""
        return in_shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """x."""
        return x

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """None."""
        return [None] * len(dy) if isinstance(dy, list) else None, {}
