"""A layer that passes its input on, and the start of a net drawn with symbols."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol, source
from singanet.types import Array, Shape, Shapes


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


def Input(name: str, sample_shape: Shape) -> Symbol:  # noqa: N802 - reads as the layer it makes
    """A symbol for an array of ``sample_shape`` (no batch axis) that the user feeds by ``name``."""
    layer = Dummy(name, input_sample_shape=sample_shape)
    layer.build(sample_shape)
    return source(layer, layer.out_shapes)  # type: ignore[arg-type]
