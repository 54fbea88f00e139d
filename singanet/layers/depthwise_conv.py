"""Depthwise convolutions of sequences and images."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.geometry import Windowed
from singanet.layers.layer import ParamSpecs
from singanet.types import Array, GivenShape, Shapes


class DepthwiseConvolution(Windowed):
    """`DepthwiseConv2D` along so many axes."""

    def __init__(
        self,
        name: str,
        kernel: Any = 3,
        stride: Any = 1,
        border_mode: str = "same",
        depth_multiplier: int = 1,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: Any = 1,
    ) -> None:
        super().__init__(name, kernel, stride, border_mode, pad, dilation, input_sample_shape)
        self.depth_multiplier = expect_int(name, "depth_multiplier", depth_multiplier)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (C·depth_multiplier, ...)."""
        shape = self.channels_first(in_shapes)
        out, size = self.out_size(shape), prod(self.window.kernel)
        channels = shape[0] * self.depth_multiplier
        fans = (size, size * self.depth_multiplier)
        self.add_param("weight", (channels, size), self.W_specs, fans=fans)
        if self.use_bias:
            self.add_param("bias", (channels,), self.b_specs)
        return (channels, *out)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C·M, ...)."""
        x = self.first_image(x)
        ctx.save(x=x)
        weight = self._kernels(ctx)
        y = ctx.ops.depthwise_conv2d(x, weight, ctx.params.get("bias"), self._inner)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, weight and bias; x is the only array kept."""
        ops, x, dy = ctx.ops, ctx.saved["x"], self.as_image(dy)
        weight = self._kernels(ctx)
        grads = {}
        if ctx.needs_param_grads:
            dw = ops.depthwise_conv2d_backward_weights(x, dy, weight.shape, self._inner)
            grads["weight"] = dw.reshape(ctx.params["weight"].shape)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = ops.depthwise_conv2d_backward_data(dy, weight, x.shape, self._inner)
        return self.as_sample(dx, self.in_shapes), grads

    def _kernels(self, ctx: Context) -> Array:
        """The weight as (C, M, kh, kw)."""
        weight = ctx.params["weight"]
        channels = len(weight) // self.depth_multiplier
        return weight.reshape(channels, self.depth_multiplier, *self._inner.kernel)


class DepthwiseConv1D(DepthwiseConvolution):
    """`DepthwiseConv2D` of sequences (C, L), or (L,) of one channel: the output is (C·M, L').

    ``weight`` has shape (C·M, k), ``bias`` (C·M,). Other arguments are as for `Conv1D`.
    """

    axes = 1
    traits = replace(DepthwiseConvolution.traits, any_extent=True)


class DepthwiseConv2D(DepthwiseConvolution):
    """Cross-correlation of each channel of (C, H, W) images with ``depth_multiplier`` kernels.

    Output channel c·M + m is channel c under its kernel m. ``weight`` has shape (C·M, kh·kw),
    ``bias`` (C·M,); the other arguments are as for `Conv2D`.
    """
