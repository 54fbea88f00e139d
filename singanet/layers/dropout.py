"""Dropout of random elements."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shape, Shapes


class Dropout(Layer):
    """Zeroes elements with probability ``p`` in training and scales the rest by 1 / (1 - p).

    Evaluation passes the input on. Srivastava et al., 2014, in the inverted form.
    """

    any_extent = True

    def __init__(self, name: str, p: float = 0.5, input_sample_shape: Shape | None = None) -> None:
        super().__init__(name, input_sample_shape)
        if not is_number(p) or not 0.0 <= p < 1.0:
            raise ArgumentError(
                f"layer {name!r}, argument p",
                expected="the probability of dropping, from 0 to below 1",
                received=repr(p),
                advice="use p=0.5 to drop half",
            )
        self.p = float(p)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """``x`` with a fresh mask in training; the mask is kept, one byte an element."""
        if not ctx.train or self.p == 0.0:
            return x
        mask = ctx.ops.keep_mask(ctx.rng, x.shape, 1.0 - self.p)
        ctx.save(mask=mask)
        return self._scaled(ctx, x, mask)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` under the same mask."""
        mask = ctx.saved.get("mask")
        return (dy if mask is None else self._scaled(ctx, dy, mask)), {}

    def _scaled(self, ctx: Context, x: Array, mask: Array) -> Array:
        y: Array = ctx.ops.multiply(x, mask)
        ctx.ops.multiply(y, 1.0 / (1.0 - self.p), out=y)
        return y
