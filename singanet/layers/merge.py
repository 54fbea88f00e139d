"""The sum of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shapes


class Merge(Layer):
    """y = the sum of at least two inputs of one shape.

    As an input layer of a net it takes a list of arrays; ``input_sample_shape`` is then a list.
    """

    any_extent = True

    def setup(self, in_shapes: Any) -> Shapes:
        """k times s → s."""
        several = isinstance(in_shapes, list) and len(in_shapes) > 1
        if not several or any(shape != in_shapes[0] for shape in in_shapes):
            raise self.shape_error(
                "at least two inputs of one sample shape",
                str(in_shapes),
                "pass src=[layer, layer] whose output shapes agree",
            )
        return in_shapes[0]

    def forward(self, ctx: Context, x: Sequence[Array]) -> Array:
        """The sum; nothing is kept but the number of inputs."""
        ctx.save(count=len(x))
        return ctx.ops.add_all(x)

    def backward(self, ctx: Context, dy: Array) -> tuple[list[Array], dict[str, Array]]:
        """``dy`` for every input."""
        return [dy] * ctx.saved["count"], {}
