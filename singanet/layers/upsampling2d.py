"""Upsampling of images."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_one_of
from singanet.layers.context import Context
from singanet.layers.geometry import expect_image, sizes
from singanet.layers.layer import Layer
from singanet.types import Array, GivenShape, Shapes

_MODES = ("nearest", "bilinear")


class Upsampling2D(Layer):
    """(C, H, W) images made ``size`` times as large, an int or (height, width).

    ``mode`` 'nearest' repeats pixels; 'bilinear' interpolates between pixel centres (corners not
    aligned, as Keras does and PyTorch by default).
    """

    def __init__(
        self,
        name: str,
        size: Any = 2,
        mode: str = "nearest",
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        height, width = sizes(name, "size", size)
        self.factors = height, width
        self.mode = expect_one_of(name, "mode", mode, _MODES)

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (C, H·size, W·size)."""
        channels, height, width = expect_image(self, in_shapes, 2)
        return (channels, height * self.factors[0], width * self.factors[1])

    def forward(self, ctx: Context, x: Array) -> Array:
        """The larger images; nothing is kept."""
        if self.mode == "nearest":
            return ctx.ops.upsample_nearest(x, self.factors)
        return ctx.ops.upsample_bilinear(x, self.factors)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes back to the pixels it came from."""
        if self.mode == "nearest":
            return ctx.ops.upsample_nearest_backward(dy, self.factors), {}
        return ctx.ops.upsample_bilinear_backward(dy, self.factors), {}
