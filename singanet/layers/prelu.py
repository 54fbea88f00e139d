"""The relu whose negative slope is learned."""

from __future__ import annotations

from typing import Any

from singanet.initializer import Constant
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.types import Array, GivenShape, Shapes


class PReLU(Layer):
    """y = x where it is positive, else a x, with a slope ``a`` for each channel of (C, ...).

    ``a`` has shape (C,), or (1,) with ``channel_shared``, and starts at 0.25. He et al., 2015.
    """

    traits = Traits(masks="keeps")

    def __init__(
        self,
        name: str,
        channel_shared: bool = False,
        a_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.channel_shared = channel_shared
        self.a_specs = a_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (channels, ...)", f"sample shape {shape}", "add a channel axis"
            )
        slopes = (1,) if self.channel_shared else shape[:1]
        self.add_param("a", slopes, self.a_specs, default=Constant(0.25))
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """The function of ``x``, which is kept."""
        ctx.save(x=x)
        return ctx.ops.prelu(x, ctx.params["a"])

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x and a."""
        dx, da = ctx.ops.prelu_backward(dy, ctx.saved["x"], ctx.params["a"])
        return dx, {"a": da}
