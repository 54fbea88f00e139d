"""Samples with their axes in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.base.counts import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Permute(Layer):
    """Axis k of the output is axis ``axes[k - 1]`` of the input; both count the batch axis.

    As in Keras, ``axes=(2, 1)`` transposes samples of two axes; the batch axis stays in front.
    """

    moves_only = True

    def __init__(
        self, name: str, axes: Sequence[int], input_sample_shape: Shape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        several = isinstance(axes, (tuple, list)) and all(is_int(axis) for axis in axes)
        if not several or sorted(axes) != list(range(1, len(axes) + 1)):
            raise ArgumentError(
                f"layer {name!r}, argument axes",
                expected="each of the sample's axes 1, 2, ... once",
                received=repr(axes),
                advice="use (2, 1) to transpose; axis 0, the batch, is left out",
            )
        self.axes = tuple(int(axis) for axis in axes)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape s → its extents in the order of ``axes``."""
        shape = self.expect_rank(
            in_shapes, len(self.axes), f"of {len(self.axes)} axes", "name each axis once in axes"
        )
        return tuple(shape[axis - 1] for axis in self.axes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """A view."""
        return x.transpose(0, *self.axes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` with the axes back in their places, as a view."""
        back = [self.axes.index(axis) + 1 for axis in range(1, len(self.axes) + 1)]
        return dy.transpose(0, *back), {}
