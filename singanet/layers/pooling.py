"""Max and average pooling of images and of sequences."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.layers.geometry import (
    OneAxis,
    along_width,
    expect_image,
    expect_nchw,
    image_size,
    make_window,
)
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Pooling2D(Layer):
    """Windows over each channel of (C, H, W) images; arguments as for `Conv2D`."""

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = 2,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        expect_nchw(name, data_format)
        self.window = make_window(name, kernel, stride, border_mode, pad)

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (C, H', W')."""
        shape = expect_image(self, in_shapes)
        out = image_size(self, shape, self.window)
        for before, after, kernel in zip(
            self.window.pads, map(sum, self.window.pads), self.window.kernel, strict=True
        ):
            if max(before) >= kernel and after:
                raise self.shape_error(
                    f"padding smaller than the kernel {self.window.kernel}",
                    f"padding {self.window.pads}",
                    "a window must meet the image somewhere",
                )
        return (shape[0], *out)


class MaxPooling2D(Pooling2D):
    """The largest value of each window; padding never wins, and of equal values the first does."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C, H', W'); keeps one small integer an output."""
        y, where = ctx.ops.max_pool(x, self.window, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes to the position of its maximum."""
        saved = ctx.saved
        return ctx.ops.max_pool_backward(dy, saved["where"], saved["x_shape"], self.window), {}


class AvgPooling2D(Pooling2D):
    """The mean of each window over the positions that lie on the image; padding is not counted."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C, H', W'); keeps no array."""
        ctx.save(x_shape=x.shape)
        return ctx.ops.avg_pool(x, self.window)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by the positions of its window."""
        return ctx.ops.avg_pool_backward(dy, ctx.saved["x_shape"], self.window), {}


class Pooling1D(OneAxis, Pooling2D):
    """Windows over each channel of sequences (C, L) or (L,); arguments as for `Conv1D`."""

    def __init__(
        self,
        name: str,
        kernel: int = 3,
        stride: int = 2,
        border_mode: str = "same",
        pad: int | None = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
    ) -> None:
        super().__init__(
            name,
            kernel=along_width(name, "kernel", kernel, 1),
            stride=along_width(name, "stride", stride, 1),
            border_mode=border_mode,
            pad=along_width(name, "pad", pad, 0, least=0),
            data_format=data_format,
            input_sample_shape=input_sample_shape,
        )


class MaxPooling1D(Pooling1D, MaxPooling2D):
    """The largest value of each window; padding never wins, and of equal values the first does.

    Sample shapes (C, L) → (C, L') and (L,) → (L',).
    """


class AvgPooling1D(Pooling1D, AvgPooling2D):
    """The mean of each window over the positions that lie on the sequence.

    Sample shapes (C, L) → (C, L') and (L,) → (L',).
    """
