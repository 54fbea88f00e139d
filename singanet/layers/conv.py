"""Convolutions of sequences, images and volumes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from singanet.layers.arguments import expect_int, expect_one_of
from singanet.layers.context import Context
from singanet.layers.geometry import Windowed, expect_groups, expect_nchw
from singanet.layers.layer import ParamSpecs
from singanet.layers.pad import MODES, expect_repeated
from singanet.types import Array, GivenShape, Shapes

_PREFERENCES = ("fastest", "autotune", "limited_workspace", "no_workspace")


class Convolution(Windowed):
    """`Conv2D` along so many axes."""

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: Any = 3,
        stride: Any = 1,
        border_mode: str = "same",
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__(name, kernel, stride, border_mode, pad, dilation, input_sample_shape)
        self.nb_kernels = expect_int(name, "nb_kernels", nb_kernels)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs
        self.groups = expect_int(name, "groups", groups)
        self.padding_mode = expect_one_of(name, "padding_mode", padding_mode, ("zeros", *MODES[1:]))
        self._border = ((0, 0), (0, 0), *self._inner.pads)
        if padding_mode != "zeros":
            # Kernels pad by zeros alone.
            self._inner = replace(self._inner, pads=((0, 0),) * len(self._inner.pads))

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (nb_kernels, ...)."""
        shape = self.channels_first(in_shapes)
        expect_groups(self, shape[0], self.nb_kernels, self.groups)
        out = self.out_size(shape)
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
        """(N, C, ...) → (N, F, ...)."""
        x = self.first_image(x)
        if self.padding_mode != "zeros":
            x = ctx.ops.pad(x, self._border, 0.0, self.padding_mode)
        ctx.save(x=x)
        weight = self._kernels(ctx, x)
        y = ctx.ops.conv2d(x, weight, ctx.params.get("bias"), self._inner, self.groups)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, weight and bias; x, with its border, is the only array kept."""
        ops, x, dy = ctx.ops, ctx.saved["x"], self.as_image(dy)
        weight = self._kernels(ctx, x)
        grads = {}
        if ctx.needs_param_grads:
            dw = ops.conv2d_backward_weights(x, dy, weight.shape, self._inner, self.groups)
            grads["weight"] = dw.reshape(len(weight), -1)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = ops.conv2d_backward_data(dy, weight, x.shape, self._inner, self.groups)
        if self.padding_mode != "zeros":
            dx = ops.pad_backward(dx, self._border, self.padding_mode)
        return self.as_sample(dx, self.in_shapes), grads

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """The weight as (F, C/groups, kh, kw)."""
        shape = (self.nb_kernels, x.shape[1] // self.groups, *self._inner.kernel)
        return ctx.params["weight"].reshape(shape)


class Conv1D(Convolution):
    """Cross-correlation of sequences (C, L), or (L,) of one channel, with ``nb_kernels`` kernels.

    The output is (F, L'). ``weight`` has shape (F, C/groups·k), channel-major; ``bias`` has shape
    (F,). The other arguments are as for `Conv2D`, each one int; ``pad`` may be (before, after). The
    ``border_mode`` 'causal' pads before alone, so that no output sees what comes after it. L may be
    None, any length, where zeros pad.
    """

    axes = 1
    traits = replace(Convolution.traits, any_extent=True)

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: int = 3,
        stride: int = 1,
        border_mode: str = "same",
        cudnn_prefer: str = "fastest",
        workspace_byte_limit: int = 1024,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: int = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        _expect_singas(name, cudnn_prefer, workspace_byte_limit)
        given = kernel, stride, border_mode, use_bias, W_specs, b_specs, pad, input_sample_shape
        super().__init__(
            name, nb_kernels, *given, dilation=dilation, groups=groups, padding_mode=padding_mode
        )


class Conv2D(Convolution):
    """Cross-correlation of (C, H, W) images with ``nb_kernels`` kernels.

    ``weight`` has shape (F, C/groups·kh·kw), channel-major then rows then columns; ``bias`` has
    shape (F,). ``kernel``, ``stride``, ``pad`` and ``dilation`` are ints or (height, width).
    ``pad`` overrides ``border_mode`` ('same': stride 1 keeps the size; 'valid': no padding); an
    entry may be (before, after). ``padding_mode`` pads by what `Pad` calls so, 'zeros' by zeros.
    SINGA's ``cudnn_prefer`` and ``workspace_byte_limit`` are accepted and do nothing: the kernels
    bound their scratch by themselves.
    """

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
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        _expect_singas(name, cudnn_prefer, workspace_byte_limit, data_format)
        given = kernel, stride, border_mode, use_bias, W_specs, b_specs, pad, input_sample_shape
        super().__init__(
            name, nb_kernels, *given, dilation=dilation, groups=groups, padding_mode=padding_mode
        )


class Conv3D(Convolution):
    """Cross-correlation of (C, D, H, W) volumes with ``nb_kernels`` kernels.

    ``weight`` has shape (F, C/groups·kd·kh·kw), channel-major; ``bias`` has shape (F,). The other
    arguments are as for `Conv2D`, each an int or (depth, height, width).
    """

    axes = 3


def _expect_singas(name: str, prefer: str, limit: int, data_format: str = "NCHW") -> None:
    """SINGA's arguments, by which nothing is chosen here."""
    expect_one_of(name, "cudnn_prefer", prefer, _PREFERENCES)
    expect_int(name, "workspace_byte_limit", limit)
    expect_nchw(name, data_format)
