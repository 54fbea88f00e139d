"""A layer that passes its input on."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shapes


class Dummy(Layer):
    """y = x; names a place in a net where data go in or gradients come out."""

    moves_only = True

    any_extent = True

    def setup(self, in_shapes: Shapes) -> Shapes:
        """Any sample shape."""
        return in_shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """x."""
        return x

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """dy."""
        return dy, {}
