"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.types import Array, GivenShape, Shapes


class _AlongAxis(Layer):
    traits = Traits(any_extent=True)

    def __init__(
        self, name: str, axis: int = 1, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.axis = expect_int(
            name, "axis", axis, least=-99, advice="use axis=1 for the first axis of the sample"
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape with that axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not (1 <= self.axis <= len(shape) or -len(shape) <= self.axis <= -1):
            raise self.shape_error(
                f"one input whose sample has the axis {self.axis}, counted with the batch axis",
                str(in_shapes),
                "use axis=1 for the first axis of the sample, or -1 for the last",
            )
        return shape


class Softmax(_AlongAxis):
    """exp(x) / sum(exp(x)) along ``axis``, which counts the batch axis: 1 is the sample's first."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """Probabilities; the output is kept."""
        y = ctx.ops.softmax(x, self.axis)
        ctx.save(y=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """y (dy - sum(dy y))."""
        return ctx.ops.softmax_backward(dy, ctx.saved["y"], self.axis), {}


class LogSoftmax(_AlongAxis):
    """x - log(sum(exp(x))) along ``axis``, as in `Softmax`; finite even where the softmax is 0."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """Logarithms of probabilities; the output is kept."""
        y = ctx.ops.log_softmax(x, self.axis)
        ctx.save(y=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """dy - exp(y) sum(dy)."""
        return ctx.ops.log_softmax_backward(dy, ctx.saved["y"], self.axis), {}
