"""A factor and an offset for each channel."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError
from singanet.initializer import Constant
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes


class Scale(Layer):
    """y = gamma x + beta for each channel of (C, ...); with ``factor`` y = factor x + offset.

    ``gamma`` starts at 1; ``use_bias=False`` leaves ``beta`` out. A fixed factor has no parameters.
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        factor: float | None = None,
        use_bias: bool = True,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        offset: float = 0.0,
    ) -> None:
        super().__init__(name, input_sample_shape)
        if not is_number(offset) or (offset and factor is None):
            raise ArgumentError(
                f"layer {name!r}, argument offset",
                expected="a number, beside a factor",
                received=f"offset={offset!r}, factor={factor!r}",
                advice="pass factor=1.0 to add a number alone",
            )
        if factor is not None and not is_number(factor):
            raise ArgumentError(
                f"layer {name!r}, argument factor",
                expected="a number, or None for a factor a channel that is learned",
                received=repr(factor),
                advice="use Multiply for the product of two inputs",
            )
        self.factor = None if factor is None else float(factor)
        self.offset = float(offset)
        self.use_bias = use_bias
        self.gamma_specs = gamma_specs
        self.beta_specs = beta_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged; with ``factor`` any."""
        shape = expect_one_input(self, in_shapes)
        if self.factor is not None:
            return shape
        if not shape or shape[0] < 1:
            raise self.shape_error(
                "samples of shape (channels, ...), of a known number",
                f"sample shape {shape}",
                "pass factor=...",
            )
        self.add_param("gamma", shape[:1], self.gamma_specs, default=Constant(1.0))
        if self.use_bias:
            self.add_param("beta", shape[:1], self.beta_specs)
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """The scaled ``x``, which is kept unless the factor is fixed."""
        if self.factor is not None:
            y: Array = ctx.ops.multiply(x, self.factor)
            return ctx.ops.add(y, self.offset, out=y) if self.offset else y
        ctx.save(x=x)
        return ctx.ops.scale(x, ctx.params["gamma"], ctx.params.get("beta"))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x, gamma and beta."""
        ops = ctx.ops
        if self.factor is not None:
            return ops.multiply(dy, self.factor), {}
        grads = {}
        if ctx.needs_param_grads:
            grads["gamma"] = _total_of_products(ops, dy, ctx.saved["x"])
            if self.use_bias:
                grads["beta"] = ops.channel_total(dy)
        return ops.scale(dy, ctx.params["gamma"], None), grads


@in_float32
def _total_of_products(ops: Ops, dy: Array, x: Array) -> Array:
    return ops.channel_total(ops.multiply(dy, x))
