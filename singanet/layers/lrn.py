"""Local response normalisation."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, GivenShape, Shapes


class LRN(Layer):
    """y_c = x_c / (k + alpha Σ x²) ** beta, the sum over the ``size`` channels around c.

    SINGA's convention on the CPU: cuDNN, Caffe and PyTorch divide ``alpha`` by ``size``, so divide
    theirs by it. Krizhevsky et al., 2012.
    """

    def __init__(
        self,
        name: str,
        size: int = 5,
        alpha: float = 1.0,
        beta: float = 0.75,
        mode: str = "cross_channel",
        k: float = 1.0,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        numbers = all(is_number(value) for value in (alpha, beta, k))
        odd = expect_int(name, "size", size) % 2 == 1
        if not odd or mode != "cross_channel" or not numbers or alpha < 0 or k <= 0:
            raise ArgumentError(
                f"layer {name!r}",
                expected="an odd size, mode='cross_channel', alpha at least 0, k above 0",
                received=f"size={size}, mode={mode!r}, alpha={alpha!r}, beta={beta!r}, k={k!r}",
                advice="the window lies over the channels, with as many on both sides",
            )
        self.size = size
        self.alpha = float(alpha)
        self.beta = float(beta)
        self.k = float(k)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (channels, ...)", f"sample shape {shape}", "add a channel axis"
            )
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """The normalised ``x``; only x is kept, which costs a second sum over windows later."""
        ctx.save(x=x)
        return ctx.ops.lrn(x, self.size, self.alpha, self.beta, self.k)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The gradient of x, through the windows as well."""
        x = ctx.saved["x"]
        return ctx.ops.lrn_backward(dy, x, self.size, self.alpha, self.beta, self.k), {}
