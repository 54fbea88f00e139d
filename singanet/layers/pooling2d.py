"""What max and average pooling share: arguments and output shape."""

from __future__ import annotations

from typing import Any

from singanet.layers.geometry import expect_image, expect_nchw, image_size, make_window
from singanet.layers.layer import Layer
from singanet.types import Shape, Shapes


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
