"""Samples in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from singanet.base.counts import is_int
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Reshape(Layer):
    """The elements of each sample, in row-major order, in ``shape``; one extent may be -1."""

    moves_only = True

    def __init__(
        self, name: str, shape: Sequence[int], input_sample_shape: Shape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        good = all(is_int(extent) or (is_int(extent, -1) and extent != 0) for extent in extents)
        if not good or extents.count(-1) > 1:
            raise ArgumentError(
                f"layer {name!r}, argument shape",
                expected="positive ints, of which one may be -1 for what remains",
                received=repr(shape),
                advice="leave the batch axis out",
            )
        self.shape = tuple(int(extent) for extent in extents)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → ``shape``, of as many elements."""
        given = expect_one_input(self, in_shapes)
        count = prod(given)
        known = prod(extent for extent in self.shape if extent != -1)
        if count % known or (-1 not in self.shape and count != known):
            raise self.shape_error(
                f"samples whose elements fill the shape {self.shape}",
                f"sample shape {given} of {count} elements",
                "use -1 for one extent",
            )
        return tuple(count // known if extent == -1 else extent for extent in self.shape)

    def forward(self, ctx: Context, x: Array) -> Array:
        """A view where memory allows."""
        ctx.save(x_shape=x.shape)
        shape: Any = self.out_shapes
        return x.reshape(len(x), *shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}
