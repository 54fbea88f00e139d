"""One-dimensional forms of the image layers: a sequence is an image of one row."""

from __future__ import annotations

from typing import Any

from singanet.base.counts import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.ops.numpy.windows import Window
from singanet.types import Array, Shape, Shapes

__all__ = ["OneAxis", "along_width"]


def along_width(layer: str, what: str, value: Any, across: int, least: int = 1) -> Any:
    """(``across``, ``value``) for the image of one row; None stays None."""
    if value is None and least == 0:
        return None
    given = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
    if not is_int(given, least):
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=f"an int of at least {least}",
            received=repr(value),
            advice=f"a sequence has one axis: pass for example {what}={max(least, 1)}",
        )
    return across, int(given)


class OneAxis(Layer):
    """Put before an image layer among the bases: samples (C, L) or (L,) pass as (C, 1, L).

    A sample (L,) is one channel; it comes out as (L',) where the layer keeps channels.
    """

    window: Window

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, L) → (C', L'), (L,) → (L',) or, of a convolution, (F, L')."""
        good = not isinstance(in_shapes, list) and len(in_shapes) in (1, 2) and min(in_shapes) > 0
        if not good:
            raise self.shape_error(
                "one input of sample shape (channels, length) or (length,), each at least 1",
                str(in_shapes),
                "reshape the samples to sequences",
            )
        channels, length = in_shapes if len(in_shapes) == 2 else (1, *in_shapes)
        if self.window.out_size(1, length)[1] < 1:
            raise self.shape_error(
                f"sequences at least as long as the kernel {self.window.kernel[1]}"
                f" with dilation {self.window.dilation[1]} and padding {self.window.pads[1]}",
                f"sample shape {in_shapes}",
                "use a smaller kernel, border_mode='same', or longer sequences",
            )
        out: Any = super().setup((channels, 1, length))
        return (out[2],) if len(in_shapes) == 1 and self.keeps_channels else (out[0], out[2])

    keeps_channels = True
    """Whether a sample without a channel axis comes out without one."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, L) or (N, L) through the image layer."""
        y: Any = super().forward(ctx, _as_image(x))
        return _as_sequence(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, Any]:
        """Gradients through the image layer."""
        dx, grads = super().backward(ctx, _as_image(dy))
        return None if dx is None else _as_sequence(dx, self.in_shapes), grads


def _as_image(x: Array) -> Array:
    return x[:, None, None] if x.ndim == 2 else x[:, :, None]


def _as_sequence(image: Array, sample_shape: Shape | Any) -> Array:
    return image[:, 0, 0] if len(sample_shape) == 1 else image[:, :, 0]
