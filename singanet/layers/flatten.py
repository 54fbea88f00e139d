"""Flattening of samples."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Flatten(Layer):
    """Folds the axes from ``axis`` on into one; ``axis`` counts the batch axis.

    With 1, the default, each sample becomes one row. With a larger axis the axes before it fold
    into the batch, as in SINGA: axis 2 turns (N, 64, 12) into (N·64, 12).
    """

    moves_only = True

    def __init__(self, name: str, axis: int = 1, input_sample_shape: Shape | None = None) -> None:
        super().__init__(name, input_sample_shape)
        self.axis = expect_int(
            name, "axis", axis, advice="axis 0 is the batch: use axis=1 to flatten each sample"
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """s → (∏ s[axis-1:],); a sample of no axes is a row of one."""
        if isinstance(in_shapes, list) or max(len(in_shapes), 1) < self.axis:
            raise self.shape_error(
                f"one input with at least {self.axis} sample axes",
                str(in_shapes),
                "use axis=1 to flatten each sample",
            )
        return (prod(in_shapes[self.axis - 1 :]),)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The same elements in row-major order of the sample."""
        ctx.save(x_shape=x.shape)
        return x.reshape(prod(x.shape[: self.axis]), prod(x.shape[self.axis :]))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` in the shape of the input."""
        return dy.reshape(ctx.saved["x_shape"]), {}
