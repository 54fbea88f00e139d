"""Depthwise convolution."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.geometry import expect_image, image_size, make_window
from singanet.layers.layer import Layer, ParamSpecs
from singanet.types import Array, Shape, Shapes


class DepthwiseConv2D(Layer):
    """Cross-correlation of each channel of (C, H, W) images with ``depth_multiplier`` kernels.

    Output channel c·M + m is channel c under its kernel m. ``weight`` has shape (C·M, kh·kw),
    ``bias`` (C·M,); the other arguments are as for `Conv2D`.
    """

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
        input_sample_shape: Shape | None = None,
        *,
        dilation: Any = 1,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.window = make_window(name, kernel, stride, border_mode, pad, dilation)
        self.depth_multiplier = expect_int(name, "depth_multiplier", depth_multiplier)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (C·depth_multiplier, H', W')."""
        shape = expect_image(self, in_shapes)
        out = image_size(self, shape, self.window)
        size = self.window.kernel[0] * self.window.kernel[1]
        channels = shape[0] * self.depth_multiplier
        fans = (size, size * self.depth_multiplier)
        self.add_param("weight", (channels, size), self.W_specs, fans=fans)
        if self.use_bias:
            self.add_param("bias", (channels,), self.b_specs)
        return (channels, *out)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, C·M, H', W')."""
        ctx.save(x=x)
        weight = self._kernels(ctx)
        return ctx.ops.depthwise_conv2d(x, weight, ctx.params.get("bias"), self.window)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, weight and bias; x is the only array kept."""
        ops, x = ctx.ops, ctx.saved["x"]
        weight = self._kernels(ctx)
        grads = {}
        if ctx.needs_param_grads:
            dw = ops.depthwise_conv2d_backward_weights(x, dy, weight.shape, self.window)
            grads["weight"] = dw.reshape(ctx.params["weight"].shape)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        return ops.depthwise_conv2d_backward_data(dy, weight, x.shape, self.window), grads

    def _kernels(self, ctx: Context) -> Array:
        """The weight as (C, M, kh, kw)."""
        weight = ctx.params["weight"]
        channels = len(weight) // self.depth_multiplier
        return weight.reshape(channels, self.depth_multiplier, *self.window.kernel)
