"""Max and average pooling of images, sequences and volumes."""

from __future__ import annotations

from typing import Any

from singanet.layers.context import Context
from singanet.layers.geometry import Windowed, expect_nchw
from singanet.types import Array, GivenShape, Shapes


class Pooling(Windowed):
    """Windows over each channel of (C, ...) samples."""

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: GivenShape | None = None,
        *,
        ceil_mode: bool = False,
        dilation: Any = 1,
    ) -> None:
        expect_nchw(name, data_format)
        stride = kernel if stride is None else stride
        super().__init__(
            name, kernel, stride, border_mode, pad, dilation, input_sample_shape, ceil_mode
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (C, ...), (L,) → (L',)."""
        shape, window = self.channels_first(in_shapes), self.window
        out = self.out_size(shape)
        if any(max(ends) >= k for ends, k in zip(window.pads, window.extent, strict=True)):
            raise self.shape_error(
                f"padding smaller than the kernel {window.kernel}",
                f"padding {window.pads}",
                "a window must meet the sample somewhere",
            )
        return out if len(in_shapes) == self.axes else (shape[0], *out)


class MaxPooling(Pooling):
    """`MaxPooling2D` along so many axes."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, ...); keeps one small integer an output."""
        x = self.as_image(x)
        y, where = ctx.ops.max_pool(x, self._inner, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes to the position of its maximum."""
        saved = self.as_image(dy), ctx.saved["where"], ctx.saved["x_shape"]
        dx = ctx.ops.max_pool_backward(*saved, self._inner)
        return self.as_sample(dx, self.in_shapes), {}


class AvgPooling(Pooling):
    """`AvgPooling2D` along so many axes."""

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = None,
        border_mode: str = "same",
        pad: Any = None,
        data_format: str = "NCHW",
        input_sample_shape: GivenShape | None = None,
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
        """(N, C, ...) → (N, C, ...); keeps no array."""
        x = self.as_image(x)
        ctx.save(x_shape=x.shape)
        y = ctx.ops.avg_pool(x, self._inner, self.count_include_pad)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by the positions of its window."""
        given = ctx.saved["x_shape"], self._inner, self.count_include_pad
        dx = ctx.ops.avg_pool_backward(self.as_image(dy), *given)
        return self.as_sample(dx, self.in_shapes), {}


class MaxPooling1D(MaxPooling):
    """`MaxPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',)."""

    axes = 1


class MaxPooling2D(MaxPooling):
    """The largest value of each window of (C, H, W) images; arguments as for `Conv2D`.

    Padding never wins, and of equal values the first does. Without ``stride`` windows lie side by
    side. With ``ceil_mode`` sizes are rounded up: a last window may reach beyond the border.
    ``dilation`` is the distance of the positions within a window.
    """


class MaxPooling3D(MaxPooling):
    """`MaxPooling2D` of volumes: (C, D, H, W) → (C, D', H', W')."""

    axes = 3


class AvgPooling1D(AvgPooling):
    """`AvgPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',)."""

    axes = 1


class AvgPooling2D(AvgPooling):
    """The mean of each window of (C, H, W) images over the positions that lie on the image.

    With ``count_include_pad`` padding is counted, too, as zeros. Other arguments are as for
    `MaxPooling2D`.
    """


class AvgPooling3D(AvgPooling):
    """`AvgPooling2D` of volumes: (C, D, H, W) → (C, D', H', W')."""

    axes = 3
