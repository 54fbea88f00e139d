"""Depthwise separable convolutions of sequences and images."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.geometry import Windowed
from singanet.layers.layer import ParamSpecs
from singanet.ops.window import Window
from singanet.types import Array, GivenShape, Shapes

_POINT = Window((1, 1), (1, 1), ((0, 0), (0, 0)))


class SeparableConvolution(Windowed):
    """`SeparableConv2D` along so many axes."""

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: Any = 3,
        stride: Any = 1,
        border_mode: str = "same",
        depth_multiplier: int = 1,
        use_bias: bool = True,
        depthwise_specs: ParamSpecs = None,
        pointwise_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: Any = 1,
    ) -> None:
        super().__init__(name, kernel, stride, border_mode, pad, dilation, input_sample_shape)
        self.nb_kernels = expect_int(name, "nb_kernels", nb_kernels)
        self.depth_multiplier = expect_int(name, "depth_multiplier", depth_multiplier)
        self.use_bias = use_bias
        self.depthwise_specs = depthwise_specs
        self.pointwise_specs = pointwise_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (nb_kernels, ...)."""
        shape = self.channels_first(in_shapes)
        out, size = self.out_size(shape), prod(self.window.kernel)
        many = shape[0] * self.depth_multiplier
        fans = (size, size * self.depth_multiplier)
        self.add_param("depthwise_weight", (many, size), self.depthwise_specs, fans=fans)
        point = (self.nb_kernels, many)
        self.add_param("pointwise_weight", point, self.pointwise_specs, fans=point[::-1])
        if self.use_bias:
            self.add_param("bias", (self.nb_kernels,), self.b_specs)
        return (self.nb_kernels, *out)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, F, ...); keeps x and what the first step makes."""
        x = self.first_image(x)
        depthwise, pointwise = self._kernels(ctx)
        inner = ctx.ops.depthwise_conv2d(x, depthwise, None, self._inner)
        ctx.save(x=x, inner=inner)
        y = ctx.ops.conv2d(inner, pointwise, ctx.params.get("bias"), _POINT)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, both weights and bias."""
        ops, x, inner = ctx.ops, ctx.saved["x"], ctx.saved["inner"]
        dy = self.as_image(dy)
        depthwise, pointwise = self._kernels(ctx)
        d_inner = ops.conv2d_backward_data(dy, pointwise, inner.shape, _POINT)
        grads = {}
        if ctx.needs_param_grads:
            made = {
                "depthwise_weight": ops.depthwise_conv2d_backward_weights(
                    x, d_inner, depthwise.shape, self._inner
                ),
                "pointwise_weight": ops.conv2d_backward_weights(inner, dy, pointwise.shape, _POINT),
            }
            grads = {key: dw.reshape(ctx.params[key].shape) for key, dw in made.items()}
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = ops.depthwise_conv2d_backward_data(d_inner, depthwise, x.shape, self._inner)
        return self.as_sample(dx, self.in_shapes), grads

    def _kernels(self, ctx: Context) -> tuple[Array, Array]:
        """The weights as (C, M, kh, kw) and (F, C·M, 1, 1)."""
        depthwise, pointwise = ctx.params["depthwise_weight"], ctx.params["pointwise_weight"]
        channels = len(depthwise) // self.depth_multiplier
        kernels = depthwise.reshape(channels, self.depth_multiplier, *self._inner.kernel)
        return kernels, pointwise.reshape(*pointwise.shape, 1, 1)


class SeparableConv1D(SeparableConvolution):
    """`SeparableConv2D` of sequences (C, L), or (L,) of one channel: the output is (F, L').

    ``depthwise_weight`` has shape (C·M, k), ``pointwise_weight`` (F, C·M), ``bias`` (F,). Other
    arguments are as for `Conv1D`.
    """

    axes = 1
    traits = replace(SeparableConvolution.traits, any_extent=True)


class SeparableConv2D(SeparableConvolution):
    """`DepthwiseConv2D` of (C, H, W) images without bias, and a 1x1 `Conv2D` of what it makes.

    ``depthwise_weight`` has shape (C·M, kh·kw), ``pointwise_weight`` (nb_kernels, C·M), ``bias``
    (nb_kernels,); M is ``depth_multiplier``. The other arguments are as for `Conv2D`. Sifre, 2014.
    """
