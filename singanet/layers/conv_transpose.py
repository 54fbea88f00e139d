"""Transposed convolutions of sequences, images and volumes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from singanet.errors import ArgumentError
from singanet.layers.arguments import expect_int
from singanet.layers.context import Context
from singanet.layers.geometry import Windowed, expect_groups, sizes
from singanet.layers.layer import ParamSpecs
from singanet.ops.window import Pads, Sizes, Window
from singanet.types import Array, GivenShape, Shape, Shapes


class TransposedConvolution(Windowed):
    """`Conv2DTranspose` along so many axes."""

    modes = ("same", "valid", "keras_same", "keras_valid")

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
        output_padding: Any = None,
        input_sample_shape: GivenShape | None = None,
        *,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(name, kernel, stride, border_mode, pad, dilation, input_sample_shape)
        self.nb_kernels = expect_int(name, "nb_kernels", nb_kernels)
        self.groups = expect_int(name, "groups", groups)
        strides, of_keras = self.window.stride, pad is None and border_mode.startswith("keras_")
        if output_padding is None and not of_keras:
            full = pad is None and border_mode == "same"
            output_padding = tuple(s - 1 for s in strides) if full else 0
        if output_padding is not None:
            output_padding = sizes(name, "output_padding", output_padding, self.axes, 0)
        if of_keras:
            cuts = _cuts_of_keras(self.window, border_mode == "keras_same", output_padding)
            self._slide(replace(self.window, pads=tuple((b, max(a, 0)) for b, a in cuts)))
            output_padding = tuple(max(-after, 0) for _, after in cuts)
        self.output_padding: Sizes = output_padding
        if any(extra >= s for extra, s in zip(self.output_padding, strides, strict=True)):
            raise ArgumentError(
                f"layer {name!r}, argument output_padding",
                expected=f"less than the stride {strides}",
                received=repr(output_padding),
                advice="more than that adds rows that no input reaches",
            )
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (nb_kernels, ...)."""
        shape = self.channels_first(in_shapes)
        expect_groups(self, shape[0], self.nb_kernels, self.groups)
        out = self._sizes(shape[1:])
        if min(out) < 1:
            raise self.shape_error(
                f"images that padding {self.window.pads} leaves something of",
                f"sample shape {shape}, of which {out} would be left",
                "use less padding",
            )
        taps = prod(self.window.kernel)
        per_input = self.nb_kernels // self.groups * taps
        fans = (shape[0] // self.groups * taps, per_input)
        self.add_param("weight", (shape[0], per_input), self.W_specs, fans=fans)
        if self.use_bias:
            self.add_param("bias", (self.nb_kernels,), self.b_specs)
        return (self.nb_kernels, *out)

    def _sizes(self, given: Shape) -> Shape:
        window = self.window
        return tuple(
            (size - 1) * stride + extent - sum(ends) + extra
            for size, stride, extent, ends, extra in zip(
                given, window.stride, window.extent, window.pads, self.output_padding, strict=True
            )
        )

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, F, ...)."""
        ops, bias, out = ctx.ops, ctx.params.get("bias"), self._sizes(x.shape[-self.axes :])
        x = self.as_image(x)
        ctx.save(x=x)
        ones = (1,) * (x.ndim - 2)
        shape = (len(x), self.nb_kernels, *ones[self.axes :], *out)
        y = ops.conv2d_backward_data(x, self._kernels(ctx), shape, self._inner, self.groups)
        y = y if bias is None else ops.add(y, bias.reshape(-1, *ones), out=y)
        return self.as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, weight and bias; x is the only array kept."""
        ops, x, dy = ctx.ops, ctx.saved["x"], self.as_image(dy)
        weight = self._kernels(ctx)
        grads = {}
        if ctx.needs_param_grads:
            dw = ops.conv2d_backward_weights(dy, x, weight.shape, self._inner, self.groups)
            grads["weight"] = dw.reshape(len(weight), -1)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = ops.conv2d(dy, weight, None, self._inner, self.groups)
        return self.as_sample(dx, self.in_shapes), grads

    def _kernels(self, ctx: Context) -> Array:
        """The weight as (C, F/groups, kh, kw): that of the convolution from output to input."""
        weight = ctx.params["weight"]
        return weight.reshape(len(weight), self.nb_kernels // self.groups, *self._inner.kernel)


def _cuts_of_keras(window: Window, same: bool, extras: Sizes | None) -> Pads:
    """How much Keras cuts off the whole output along each axis, before and after.

    A negative number is zeros to add. "same" gives in·stride and cuts the larger half after. The
    cuts with ``extras`` follow Keras 3's `_convert_conv_transpose_padding_args_from_keras_to_jax`.
    """
    found = []
    for extent, stride, extra in zip(
        window.extent, window.stride, extras or (None,) * len(window.kernel), strict=True
    ):
        if not same:
            total = min(extent - stride, 0) if extra is None else -extra
        else:
            total = extent - stride if extra is None else extent - extent % 2 - extra
        before = max(total // 2, 0)
        found.append((before, total - before))
    return tuple(found)


class Conv1DTranspose(TransposedConvolution):
    """`Conv2DTranspose` of sequences (C, L), or (L,) of one channel: the output is (F, L').

    ``weight`` has shape (C, F/groups·k), ``bias`` (F,). Arguments are ints; ``pad`` may be
    (before, after).
    """

    axes = 1


class Conv2DTranspose(TransposedConvolution):
    """The map that a `Conv2D` of the same arguments has for its input gradient, on (C, H, W).

    The output size is (in - 1)·stride - padding + dilation·(kernel - 1) + 1 + ``output_padding``.
    ``output_padding`` is stride - 1 with border_mode='same', so that the size becomes in·stride,
    and else 0. border_mode 'keras_same' and 'keras_valid' pad as Keras' "same" and "valid": the
    first puts (kernel - stride) // 2 before, and in both a kernel shorter than the stride gives
    in·stride. ``weight`` has shape (C, F/groups·kh·kw), ``bias`` (F,). Zeiler et al., 2010.
    """


class Conv3DTranspose(TransposedConvolution):
    """`Conv2DTranspose` of (C, D, H, W) volumes: the output is (F, D', H', W').

    ``weight`` has shape (C, F/groups·kd·kh·kw), ``bias`` (F,). Sizes are ints or (depth, height,
    width).
    """

    axes = 3
