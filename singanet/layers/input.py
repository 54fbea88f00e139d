"""The start of a net drawn with symbols."""

from __future__ import annotations

from singanet.layers.dummy import Dummy
from singanet.layers.symbol import Symbol, source
from singanet.types import Shape


def Input(name: str, sample_shape: Shape) -> Symbol:  # noqa: N802 - reads as the layer it makes
    """A symbol for an array of ``sample_shape`` (no batch axis) that the user feeds by ``name``."""
    layer = Dummy(name, input_sample_shape=sample_shape)
    layer.build(sample_shape)
    return source(layer, layer.out_shapes)  # type: ignore[arg-type]
