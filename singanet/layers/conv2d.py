"""Two-dimensional convolution."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from singanet.layers.arguments import expect_int, expect_one_of
from singanet.layers.context import Context
from singanet.layers.geometry import (
    expect_groups,
    expect_image,
    expect_nchw,
    image_size,
    make_window,
)
from singanet.layers.layer import Layer, ParamSpecs
from singanet.layers.pad import MODES, expect_repeated
from singanet.types import Array, Shape, Shapes

_PREFERENCES = ("fastest", "autotune", "limited_workspace", "no_workspace")


class Conv2D(Layer):
    """Cross-correlation of (C, H, W) images with ``nb_kernels`` kernels.

    ``weight`` has shape (F, C/groups·kh·kw), channel-major then rows then columns; ``bias`` has
    shape (F,). ``kernel``, ``stride``, ``pad`` and ``dilation`` are ints or (height, width).
    ``pad`` overrides ``border_mode`` ('same': stride 1 keeps the size; 'valid': no padding); an
    entry may be (before, after). ``padding_mode`` pads by what `Pad` calls so, 'zeros' by zeros.
    ``cudnn_prefer`` and ``workspace_byte_limit`` (MB) are kept for a backend that chooses among
    algorithms; the kernels here bound their scratch by themselves.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: Any = 3,
        stride: Any = 1,
        border_mode: str = "same",
        cudnn_prefer: str = "fastest",
        workspace_byte_limit: int = 1024,
        data_format: str = "NCHW",
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: Shape | None = None,
        *,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__(name, input_sample_shape)
        expect_nchw(name, data_format)
        self.nb_kernels = expect_int(name, "nb_kernels", nb_kernels)
        self.window = make_window(name, kernel, stride, border_mode, pad, dilation, self.axes)
        self.cudnn_prefer = expect_one_of(name, "cudnn_prefer", cudnn_prefer, _PREFERENCES)
        self.workspace_byte_limit = expect_int(name, "workspace_byte_limit", workspace_byte_limit)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs
        self.groups = expect_int(name, "groups", groups)
        self.padding_mode = expect_one_of(name, "padding_mode", padding_mode, ("zeros", *MODES[1:]))
        # What kernels do, which pad by zeros alone.
        bare = replace(self.window, pads=((0, 0),) * len(self.window.pads))
        self._inner = self.window if padding_mode == "zeros" else bare

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (nb_kernels, H', W')."""
        shape = expect_image(self, in_shapes, self.axes)
        expect_groups(self, shape[0], self.nb_kernels, self.groups)
        out = image_size(self, shape, self.window)
        expect_repeated(self, self.padding_mode, shape[1:], self.window.pads)
        per_output = shape[0] // self.groups * prod(self.window.kernel)
        per_input = self.nb_kernels * per_output // shape[0]
        self.add_param(
            "weight", (self.nb_kernels, per_output), self.W_specs, fans=(per_output, per_input)
        )
        if self.use_bias:
            self.add_param("bias", (self.nb_kernels,), self.b_specs)
        return (self.nb_kernels, *out)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, H, W) → (N, F, H', W')."""
        if self.padding_mode != "zeros":
            x = ctx.ops.pad(x, [(0, 0), (0, 0), *self.window.pads], 0.0, self.padding_mode)
        ctx.save(x=x)
        weight = self._kernels(ctx, x)
        return ctx.ops.conv2d(x, weight, ctx.params.get("bias"), self._inner, self.groups)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, weight and bias; x, with its border, is the only array kept."""
        ops, x, window = ctx.ops, ctx.saved["x"], self._inner
        weight = self._kernels(ctx, x)
        grads = {}
        if ctx.needs_param_grads:
            dw = ops.conv2d_backward_weights(x, dy, weight.shape, window, self.groups)
            grads["weight"] = dw.reshape(len(weight), -1)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = ops.conv2d_backward_data(dy, weight, x.shape, window, self.groups)
        if self.padding_mode != "zeros":
            dx = ops.pad_backward(dx, [(0, 0), (0, 0), *self.window.pads], self.padding_mode)
        return dx, grads

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """The weight as (F, C/groups, kh, kw)."""
        shape = (self.nb_kernels, x.shape[1] // self.groups, *self.window.kernel)
        return ctx.params["weight"].reshape(shape)
