"""Max and average pooling of images, sequences and volumes."""

from __future__ import annotations

from typing import Any, ClassVar

from singanet.layers.context import Context
from singanet.layers.geometry import (
    OneAxis,
    expect_image,
    expect_nchw,
    image_size,
    make_window,
    one_row,
)
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Pooling2D(Layer):
    """Windows over each channel of (C, H, W) images; arguments as for `Conv2D`.

    Without ``stride`` windows lie side by side. With ``ceil_mode`` sizes are rounded up: a last
    window may reach beyond the border.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
        *,
        ceil_mode: bool = False,
        dilation: Any = 1,
    ) -> None:
        super().__init__(name, input_sample_shape)
        expect_nchw(name, data_format)
        stride = kernel if stride is None else stride
        self.window = make_window(
            name, kernel, stride, border_mode, pad, dilation, self.axes, ceil_mode
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (C, H', W')."""
        shape = expect_image(self, in_shapes, self.axes)
        out = image_size(self, shape, self.window)
        if any(
            max(ends) >= k for ends, k in zip(self.window.pads, self.window.extent, strict=True)
        ):
            raise self.shape_error(
                f"padding smaller than the kernel {self.window.kernel}",
                f"padding {self.window.pads}",
                "a window must meet the image somewhere",
            )
        return (shape[0], *out)


class MaxPooling2D(Pooling2D):
    """The largest value of each window; padding never wins, and of equal values the first does.

    ``dilation`` is the distance of the positions within a window.
    """

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
    """The mean of each window over the positions that lie on the image.

    With ``count_include_pad`` padding is counted, too, as zeros.
    """

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> None:
        super().__init__(
            name,
            kernel,
            stride,
            border_mode,
            pad,
            data_format,
            input_sample_shape,
            ceil_mode=ceil_mode,
        )
        self.count_include_pad = bool(count_include_pad)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C, H', W'); keeps no array."""
        ctx.save(x_shape=x.shape)
        return ctx.ops.avg_pool(x, self.window, self.count_include_pad)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by the positions of its window."""
        given = (ctx.saved["x_shape"], self.window, self.count_include_pad)
        return ctx.ops.avg_pool_backward(dy, *given), {}


class MaxPooling1D(OneAxis, MaxPooling2D):
    """`MaxPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',)."""

    def __init__(
        self,
        name: str,
        kernel: int = 3,
        stride: int | None = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
        *,
        ceil_mode: bool = False,
        dilation: int = 1,
    ) -> None:
        stride = kernel if stride is None else stride
        super().__init__(
            name,
            data_format=data_format,
            input_sample_shape=input_sample_shape,
            ceil_mode=ceil_mode,
            **one_row(name, kernel, stride, border_mode, pad, dilation),
        )


class AvgPooling1D(OneAxis, AvgPooling2D):
    """`AvgPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',)."""

    def __init__(
        self,
        name: str,
        kernel: int = 3,
        stride: int | None = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> None:
        row = one_row(name, kernel, kernel if stride is None else stride, border_mode, pad)
        del row["dilation"]
        super().__init__(
            name,
            data_format=data_format,
            input_sample_shape=input_sample_shape,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            **row,
        )


class MaxPooling3D(MaxPooling2D):
    """`MaxPooling2D` of volumes: (C, D, H, W) → (C, D', H', W')."""

    axes = 3


class AvgPooling3D(AvgPooling2D):
    """`AvgPooling2D` of volumes: (C, D, H, W) → (C, D', H', W')."""

    axes = 3
