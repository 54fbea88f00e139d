"""Pooling over all positions of a sample."""

from __future__ import annotations

from typing import Any, ClassVar

from singanet.layers.context import Context
from singanet.layers.geometry import MEANINGS
from singanet.layers.layer import Layer
from singanet.types import Array, GivenShape, Shapes


class GlobalPooling(Layer):
    """(C, positions...) → (C,); subclasses say how many axes of positions there are.

    With ``keepdims`` these stay, each of one position.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self, name: str, input_sample_shape: GivenShape | None = None, *, keepdims: bool = False
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.keepdims = bool(keepdims)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...) → (C,)."""
        meaning = MEANINGS[self.axes]
        shape = self.expect_rank(in_shapes, self.axes + 1, meaning, "put it before Flatten")
        if 0 in shape:
            raise self.shape_error(
                "at least one position to pool over", f"{shape}", "check the layers before it"
            )
        return (shape[0], *(1,) * (len(shape) - 1)) if self.keepdims else (shape[0],)

    def _out(self, y: Array, x: Array) -> Array:
        return y.reshape(*y.shape, *(1,) * (x.ndim - 2)) if self.keepdims else y

    def _rows(self, dy: Array) -> Array:
        return dy.reshape(dy.shape[:2])


class GlobalAvgPooling(GlobalPooling):
    """The mean of each channel."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C); keeps no array."""
        ctx.save(x_shape=x.shape)
        return self._out(ctx.ops.global_avg_pool(x), x)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by the positions."""
        return ctx.ops.global_avg_pool_backward(self._rows(dy), ctx.saved["x_shape"]), {}


class GlobalMaxPooling(GlobalPooling):
    """The largest value of each channel; of equal values the first counts."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C); keeps one integer an output."""
        y, where = ctx.ops.global_max_pool(x, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return self._out(y, x)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes to the position of its maximum."""
        given = (self._rows(dy), ctx.saved["where"], ctx.saved["x_shape"])
        return ctx.ops.global_max_pool_backward(*given), {}


class GlobalAvgPooling1D(GlobalAvgPooling):
    """The mean of each channel over all positions: (C, L) → (C,)."""

    axes = 1


class GlobalAvgPooling2D(GlobalAvgPooling):
    """The mean of each channel over all positions: (C, H, W) → (C,)."""


class GlobalMaxPooling1D(GlobalMaxPooling):
    """The largest value of each channel over all positions: (C, L) → (C,)."""

    axes = 1


class GlobalMaxPooling2D(GlobalMaxPooling):
    """The largest value of each channel over all positions: (C, H, W) → (C,)."""


class GlobalAvgPooling3D(GlobalAvgPooling):
    """The mean of each channel over all positions: (C, D, H, W) → (C,)."""

    axes = 3


class GlobalMaxPooling3D(GlobalMaxPooling):
    """The largest value of each channel over all positions: (C, D, H, W) → (C,)."""

    axes = 3
