"""A parameter as an array of the net, to be joined with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.types import Array, GivenShape, Shapes


class Weight(Layer):
    """The parameter ``weight`` of ``shape``, the same for every sample of the input.

    Of the input only the number of its samples is read. So a class token begins the sequence of a
    vision transformer, and a table is added to what has no layer for it.
    """

    traits = Traits(input_kinds=("any",), any_extent=True, stops_gradient=True)

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        W_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not isinstance(shape, (tuple, list)) or not all(is_int(size) for size in shape):
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="the extents of the array, without the batch axis",
                received=repr(shape),
                advice="pass for example shape=(1, 64)",
            )
        self.shape = tuple(int(size) for size in shape)
        self.W_specs = W_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape → ``shape``."""
        self.add_param("weight", self.shape, self.W_specs)
        return self.shape

    def forward(self, ctx: Context, x: Any) -> Array:
        """The parameter as often as there are samples; no array is kept."""
        first = x[0] if isinstance(x, (list, tuple)) else x
        return ctx.ops.xp.broadcast_to(ctx.params["weight"], (len(first), *self.shape))

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """The sum of ``dy`` over the samples, and nothing for the input."""
        return None, {"weight": ctx.ops.sum(dy, axis=0)}
