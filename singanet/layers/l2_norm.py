"""Vectors scaled to length 1."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_one_input, expect_positive
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, GivenShape, Shapes


class L2Norm(Layer):
    """y = x / sqrt(Σ x² + epsilon) along the last axis of (D,) or (..., D) samples."""

    def __init__(
        self, name: str, input_sample_shape: GivenShape | None = None, epsilon: float = 1e-8
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.epsilon = expect_positive(name, "epsilon", epsilon)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape of at least one axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of at least one axis", f"sample shape {shape}", "use Reshape before it"
            )
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """The scaled vectors, which are kept with one number each."""
        y, inverse = ctx.ops.l2_norm(x, self.epsilon)
        ctx.save(y=y, inverse=inverse)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """(dy - y Σ dy y) / sqrt(Σ x² + epsilon)."""
        return ctx.ops.l2_norm_backward(dy, ctx.saved["y"], ctx.saved["inverse"]), {}
