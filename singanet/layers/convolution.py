"""Convolutions over one, two and three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, brief
from singanet.layers.context import Context
from singanet.layers.geometry import (
    Border,
    Extents,
    Padding,
    Spatial,
    Windowed,
    expect_groups,
    expect_pads,
    sizes,
)
from singanet.layers.layer import (
    Layer,
    Name,
    ParamSpecs,
    expect_activation,
    expect_int,
    expect_one_input,
    expect_one_of,
)
from singanet.layers.words import DepthwiseWords, KernelAndBias, SeparableWords
from singanet.ops.interface import Ops
from singanet.ops.window import Pads, Sizes, Window
from singanet.types import Array, GivenShape, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack

MODES = ("constant", "reflect", "replicate", "circular")


class Convolving(Windowed):
    """Kernels that slide over (C, ...) samples, and a bias for each output channel."""

    padding_mode = "zeros"
    _border: Pads

    def __init__(
        self,
        name: str,
        window: tuple[Extents, Extents | str, Padding, Extents],
        input_shape: GivenShape | None,
        activation: str | Layer | None,
        specs: tuple[bool, ParamSpecs, ParamSpecs],
        data_format: str | None,
    ) -> None:
        super().__init__(name, *window, input_shape, data_format=data_format)
        self.activation = expect_activation(name, activation)
        self.use_bias, self.W_specs, self.b_specs = specs

    def _add_kernels(self, shape: Shape, fans: tuple[int, int], out: Shape) -> Any:
        """Create the weight, and the bias of outputs ``out`` (channels first); return the shape."""
        self.add_param("weight", shape, self.W_specs, fans=fans)
        if self.use_bias:
            self.add_param("bias", out[:1], self.b_specs)
        return self._swapped(out)

    def _by(self, ops: Ops) -> tuple[Any, Any, Any]:
        """Return the convolution, and the gradients of its input and of its weight."""
        return ops.conv2d, ops.conv2d_backward_data, ops.conv2d_backward_weights

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """Return the weight in the shape that the kernels of `Ops` need for images ``x``."""
        raise NotImplementedError

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, F, ...)."""
        x = self._first_image(x)
        if self.padding_mode != "zeros":
            x = ctx.ops.pad(x, self._border, 0.0, self.padding_mode)
        ctx.save(x=x)
        convolve, *_ = self._by(ctx.ops)
        y = convolve(x, self._kernels(ctx, x), ctx.params.get("bias"), self._inner)
        return self._as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Return the gradients of x, weight and bias; only x, with its border, is saved."""
        ops, x, dy = ctx.ops, ctx.saved["x"], self._as_image(dy)
        weight, (_, of_input, of_weight) = self._kernels(ctx, x), self._by(ops)
        grads = {}
        if ctx._needs_param_grads:
            dw = of_weight(x, dy, weight.shape, self._inner)
            grads["weight"] = dw.reshape(ctx.params["weight"].shape)
            if self.use_bias:
                grads["bias"] = ops.channel_sum(dy)
        if not ctx.needs_input_grad:
            return None, grads
        dx = of_input(dy, weight, x.shape, self._inner)
        if self.padding_mode != "zeros":
            dx = ops.pad_backward(dx, self._border, self.padding_mode)
        return self._as_sample(dx, self.in_shapes), grads


class Convolution(Convolving):
    """`Conv2D` along ``_axes`` axes."""

    def __init__(
        self,
        name: Name = None,
        filters: Extents = REQUIRED,
        kernel_size: Extents = 3,
        strides: Extents | str = 1,
        padding: Padding = "same",
        *,
        dilation_rate: Extents = 1,
        groups: int = 1,
        activation: str | Layer | None = None,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        padding_mode: str = "zeros",
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[KernelAndBias],
    ) -> None:
        window = kernel_size, strides, padding, dilation_rate
        specs = use_bias, W_specs, b_specs
        super().__init__(name, window, input_shape, activation, specs, data_format)
        self.filters = expect_int(name, "filters", filters)
        self.groups = expect_int(name, "groups", groups)
        self.padding_mode = expect_one_of(name, "padding_mode", padding_mode, ("zeros", *MODES[1:]))
        self._slide(replace(self.window, groups=groups))
        self._border = ((0, 0), (0, 0), *self._inner.pads)
        if padding_mode != "zeros":
            # Kernels only pad with zeros.
            self._inner = replace(self._inner, pads=((0, 0),) * len(self._inner.pads))

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (filters, ...)."""
        shape = self._channels_first(in_shapes)
        expect_groups(self, shape[0], self.filters, self.groups)
        out = self._out_size(shape)
        expect_repeated(self, self.padding_mode, shape[1:], self.window.pads)
        per_output = shape[0] // self.groups * prod(self.window.kernel)
        fans = (per_output, self.filters * per_output // shape[0])
        return self._add_kernels((self.filters, per_output), fans, (self.filters, *out))

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """Return the weight as (F, C/groups, kh, kw)."""
        shape = (self.filters, x.shape[1] // self.groups, *self._inner.kernel)
        return ctx.params["weight"].reshape(shape)


class Conv1D(Convolution):
    """A layer that cross-correlates sequences (C, L) or (L,) with ``filters`` kernels.

    The output is (F, L'). ``weight`` has shape (F, C/groups·k), channel-major; ``bias`` has shape
    (F,). Samples (L,) have one channel. L may be None, for any length, if zeros pad.

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: Positive int, the number of steps in a kernel.
        strides: Positive int, the steps from one window to the next.
        padding: An int, (before, after), "same", "valid", or "causal", which pads only before, so
            that no output depends on later steps; "same" by default (Keras: "valid").
        dilation_rate: Positive int, the distance of the steps within a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        padding_mode: Values of the padding: 'zeros', 'reflect', 'replicate' or 'circular'.
        data_format: "channels_last" if samples are (L, C) and outputs (L', F); "channels_first" for
            (C, L). One of them is needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 20))
        >>> singanet.layers.Conv1D(filters=16, kernel_size=5, padding="causal")(x).shape
        (16, 20)
    """

    _axes = 1
    traits = replace(Convolution.traits, any_extent=True)


class Conv2D(Convolution):
    """A layer that cross-correlates (C, H, W) images with ``filters`` kernels.

    ``weight`` has shape (F, C/groups·kh·kw), channel-major then rows then columns; ``bias`` has
    shape (F,).

    "same" pads (kernel - 1)·dilation in all, so that strides of 1 keep the size; "valid" adds no
    padding. SINGA's ``pad`` overrides its ``border_mode``.

    SINGA's ``cudnn_prefer``, ``workspace_byte_limit`` and ``data_format`` of "NCHW" are accepted by
    name, as by every layer with windows, and have no effect: kernels bound their scratch
    themselves.

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: An int or (height, width), 3 by default.
        strides: An int or (height, width).
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (height, width) an int or (before, after).
        dilation_rate: An int or (height, width), the distance of the positions within a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        padding_mode: Values of the padding: 'zeros', or a mode of `Pad`: 'reflect', 'replicate',
            'circular'.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, H, W), to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.Conv2D(filters=8, kernel_size=3, input_shape=(3, 32, 32))
        >>> layer.get_output_sample_shape()
        (8, 32, 32)
        >>> layer.params["weight"].shape
        (8, 27)
    """


class Conv3D(Convolution):
    """A layer that cross-correlates (C, D, H, W) volumes with ``filters`` kernels.

    ``weight`` has shape (F, C/groups·kd·kh·kw), channel-major; ``bias`` has shape (F,).

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: An int or (depth, height, width), 3 by default.
        strides: An int or (depth, height, width).
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (depth, height, width) an int or (before, after).
        dilation_rate: An int or (depth, height, width), the distance of the positions in a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        padding_mode: Values of the padding: 'zeros', 'reflect', 'replicate' or 'circular'.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, D, H, W), to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (3, 8, 16, 16))
        >>> singanet.layers.Conv3D(filters=16, kernel_size=3, strides=2)(x).shape
        (16, 4, 8, 8)
    """

    _axes = 3


class TransposedConvolution(Convolving):
    """`Conv2DTranspose` along ``_axes`` axes."""

    _modes = ("same", "valid", "keras_same", "keras_valid")

    def __init__(
        self,
        name: Name = None,
        filters: Extents = REQUIRED,
        kernel_size: Extents = 3,
        strides: Extents | str = 1,
        padding: Padding = "same",
        *,
        output_padding: Extents | None = None,
        dilation_rate: Extents = 1,
        groups: int = 1,
        activation: str | Layer | None = None,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[KernelAndBias],
    ) -> None:
        window = kernel_size, strides, padding, dilation_rate
        specs = use_bias, W_specs, b_specs
        super().__init__(name, window, input_shape, activation, specs, data_format)
        self.filters = expect_int(name, "filters", filters)
        self.groups = expect_int(name, "groups", groups)
        self._slide(replace(self.window, groups=groups))
        step, extras = self.window.stride, output_padding
        if extras is not None:
            extras = sizes(name, "output_padding", extras, self._axes, 0)
        if padding in ("keras_same", "keras_valid"):
            cuts = _cuts_of_keras(self.window, padding == "keras_same", extras)
            self._slide(replace(self.window, pads=tuple((b, max(a, 0)) for b, a in cuts)))
            extras = tuple(max(-after, 0) for _, after in cuts)
        elif extras is None:
            extras = tuple(s - 1 if padding == "same" else 0 for s in step)
        self.output_padding: Sizes = extras
        if any(extra >= s for extra, s in zip(self.output_padding, step, strict=True)):
            raise ArgumentError(
                f"layer {name!r}, argument output_padding",
                expected=f"numbers below the strides {step}",
                received=brief(extras),
                advice="reduce it: more would add rows that no input reaches",
            )

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (filters, ...)."""
        shape = self._channels_first(in_shapes)
        expect_groups(self, shape[0], self.filters, self.groups)
        out = self._sizes(shape[1:])
        if min(out) < 1:
            raise self.shape_error(
                f"images larger than the padding {self.window.pads}",
                f"sample shape {shape}, for outputs of shape {out}",
                "use less padding",
            )
        taps = prod(self.window.kernel)
        per_input = self.filters // self.groups * taps
        fans = (shape[0] // self.groups * taps, per_input)
        return self._add_kernels((shape[0], per_input), fans, (self.filters, *out))

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
        ops, bias, x = ctx.ops, ctx.params.get("bias"), self._as_image(x)
        out = self._sizes(x.shape[-self._axes :])
        ctx.save(x=x)
        ones = (1,) * (x.ndim - 2)
        shape = (len(x), self.filters, *ones[self._axes :], *out)
        y = ops.conv2d_backward_data(x, self._kernels(ctx, x), shape, self._inner)
        y = y if bias is None else ops.add(y, bias.reshape(-1, *ones), out=y)
        return self._as_sample(y, self.out_shapes)

    def _by(self, ops: Ops) -> tuple[Any, Any, Any]:
        """Return the same functions of the convolution from output to input, in reverse roles."""
        return (
            ops.conv2d_backward_data,
            lambda dy, weight, x_shape, window: ops.conv2d(dy, weight, None, window),
            lambda x, dy, shape, window: ops.conv2d_backward_weights(dy, x, shape, window),
        )

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """Return the weight (C, F/groups, kh, kw) of the convolution from output to input."""
        weight = ctx.params["weight"]
        return weight.reshape(len(weight), self.filters // self.groups, *self._inner.kernel)


def _cuts_of_keras(window: Window, same: bool, extras: Sizes | None) -> Pads:
    """Return the rows that Keras cuts off the whole output along each axis, before and after.

    A negative number adds zeros. "same" gives in·stride and cuts the larger half after. The cuts
    with ``extras`` follow Keras 3's `_convert_conv_transpose_padding_args_from_keras_to_jax`.
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

    ``weight`` has shape (C, F/groups·k), ``bias`` (F,).

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: Positive int, the number of steps in a kernel.
        strides: Positive int, the factor by which the length grows.
        padding: An int, (before, after), or a string, as for `Conv2DTranspose`; "same" by default.
        output_padding: Int below ``strides``, the steps added at the end; None for strides - 1 with
            "same", otherwise 0.
        dilation_rate: Positive int, the distance of the steps within a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        data_format: "channels_last" if samples are (L, C) and outputs (L', F); "channels_first" for
            (C, L). One of them is needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.Conv1DTranspose(filters=4, kernel_size=3, strides=2)(x).shape
        (4, 20)
    """

    _axes = 1


class Conv2DTranspose(TransposedConvolution):
    """A layer that computes the input gradient of a `Conv2D` with the same arguments, on (C, H, W).

    The output size is (in - 1)·stride - padding + dilation·(kernel - 1) + 1 + ``output_padding``.
    ``weight`` has shape (C, F/groups·kh·kw), ``bias`` (F,). Zeiler et al., 2010.

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: An int or (height, width), 3 by default.
        strides: An int or (height, width), the factor by which the size grows.
        padding: "same" by default, "valid", numbers, or "keras_same" and "keras_valid" for Keras'
            modes "same" and "valid". "keras_same" pads (kernel - stride) // 2 before; with both a
            kernel shorter than the stride gives in·stride.
        output_padding: An int or (height, width) below the strides, rows and columns added at the
            end. By default stride - 1 with "same", so that the size becomes in·stride; otherwise 0.
        dilation_rate: An int or (height, width), the distance of the positions within a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, H, W), to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.Conv2DTranspose(filters=4, kernel_size=3, strides=2)(x).shape
        (4, 20, 20)
    """


class Conv3DTranspose(TransposedConvolution):
    """`Conv2DTranspose` of (C, D, H, W) volumes: the output is (F, D', H', W').

    ``weight`` has shape (C, F/groups·kd·kh·kw), ``bias`` (F,).

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: An int or (depth, height, width), 3 by default.
        strides: An int or (depth, height, width), the factor by which the size grows.
        padding: Numbers or a string, as for `Conv2DTranspose`; "same" by default.
        output_padding: An int or (depth, height, width) below the strides, added at the end; None
            for stride - 1 with "same", otherwise 0.
        dilation_rate: An int or (depth, height, width), the distance of the positions in a kernel.
        groups: Int that divides the channels and ``filters``; groups are convolved separately.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, D, H, W), to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.Conv3DTranspose(filters=4, kernel_size=3, strides=2)(x).shape
        (4, 8, 20, 20)
    """

    _axes = 3


class DepthwiseConvolution(Convolving):
    """`DepthwiseConv2D` along ``_axes`` axes."""

    def __init__(
        self,
        name: Name = None,
        kernel_size: Extents = 3,
        strides: Extents | str = 1,
        padding: Padding = "same",
        depth_multiplier: int = 1,
        *,
        dilation_rate: Extents = 1,
        activation: str | Layer | None = None,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[DepthwiseWords],
    ) -> None:
        window = kernel_size, strides, padding, dilation_rate
        specs = use_bias, W_specs, b_specs
        super().__init__(name, window, input_shape, activation, specs, data_format)
        self.depth_multiplier = expect_int(name, "depth_multiplier", depth_multiplier)

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (C·depth_multiplier, ...)."""
        shape = self._channels_first(in_shapes)
        out, size = self._out_size(shape), prod(self.window.kernel)
        channels = shape[0] * self.depth_multiplier
        fans = (size, size * self.depth_multiplier)
        return self._add_kernels((channels, size), fans, (channels, *out))

    def _by(self, ops: Ops) -> tuple[Any, Any, Any]:
        gradients = ops.depthwise_conv2d_backward_data, ops.depthwise_conv2d_backward_weights
        return ops.depthwise_conv2d, *gradients

    def _kernels(self, ctx: Context, x: Array) -> Array:
        """Return the weight as (C, M, kh, kw)."""
        weight = ctx.params["weight"]
        channels = len(weight) // self.depth_multiplier
        return weight.reshape(channels, self.depth_multiplier, *self._inner.kernel)


class DepthwiseConv1D(DepthwiseConvolution):
    """`DepthwiseConv2D` of sequences (C, L), or (L,) of one channel: the output is (C·M, L').

    ``weight`` has shape (C·M, k), ``bias`` (C·M,).

    Args:
        name: Name of the layer, a string.
        kernel_size: Positive int, the number of steps in a kernel.
        strides: Positive int, the steps from one window to the next.
        padding: An int, (before, after), "same" (the default), "valid" or "causal".
        depth_multiplier: Positive int M, the number of kernels for each channel.
        dilation_rate: Positive int, the distance of the steps within a kernel.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        data_format: "channels_last" if samples are (L, C) and outputs (L', C·M); "channels_first"
            for (C, L). One of them is needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``depthwise_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.DepthwiseConv1D(kernel_size=3, depth_multiplier=2)(x).shape
        (16, 10)
    """

    _axes = 1
    traits = replace(DepthwiseConvolution.traits, any_extent=True)


class DepthwiseConv2D(DepthwiseConvolution):
    """A layer that cross-correlates each channel of images with ``depth_multiplier`` kernels.

    Samples are (C, H, W). Output channel c·M + m is channel c under its kernel m. ``weight`` has
    shape (C·M, kh·kw), ``bias`` (C·M,).

    Args:
        name: Name of the layer, a string.
        kernel_size: An int or (height, width), 3 by default.
        strides: An int or (height, width).
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (height, width) an int or (before, after).
        depth_multiplier: Positive int M, the number of kernels for each channel.
        dilation_rate: An int or (height, width), the distance of the positions within a kernel.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        W_specs: Dict with the settings of the weight, or a `Param` of another layer to share.
        b_specs: The same for the bias.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, H, W), to create the parameters at once.
        words: Keras' ``depthwise_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.DepthwiseConv2D(kernel_size=3, depth_multiplier=2)(x).shape
        (16, 10, 10)
    """


_POINT = Window((1, 1), (1, 1), ((0, 0), (0, 0)))


class SeparableConvolution(Windowed):
    """`SeparableConv2D` along ``_axes`` axes."""

    def __init__(
        self,
        name: Name = None,
        filters: Extents = REQUIRED,
        kernel_size: Extents = 3,
        strides: Extents | str = 1,
        padding: Padding = "same",
        *,
        dilation_rate: Extents = 1,
        depth_multiplier: int = 1,
        activation: str | Layer | None = None,
        use_bias: bool = True,
        depthwise_specs: ParamSpecs = None,
        pointwise_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[SeparableWords],
    ) -> None:
        window = kernel_size, strides, padding, dilation_rate
        super().__init__(name, *window, input_shape, data_format=data_format)
        self.activation = expect_activation(name, activation)
        self.filters = expect_int(name, "filters", filters)
        self.depth_multiplier = expect_int(name, "depth_multiplier", depth_multiplier)
        self.use_bias = use_bias
        self.depthwise_specs = depthwise_specs
        self.pointwise_specs = pointwise_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (filters, ...)."""
        shape = self._channels_first(in_shapes)
        out, size = self._out_size(shape), prod(self.window.kernel)
        many = shape[0] * self.depth_multiplier
        fans = (size, size * self.depth_multiplier)
        self.add_param("depthwise_weight", (many, size), self.depthwise_specs, fans=fans)
        point = (self.filters, many)
        self.add_param("pointwise_weight", point, self.pointwise_specs, fans=point[::-1])
        if self.use_bias:
            self.add_param("bias", (self.filters,), self.b_specs)
        return self._swapped((self.filters, *out))

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, F, ...); saves x and the output of the depthwise convolution."""
        x = self._first_image(x)
        depthwise, pointwise = self._kernels(ctx)
        inner = ctx.ops.depthwise_conv2d(x, depthwise, None, self._inner)
        ctx.save(x=x, inner=inner)
        y = ctx.ops.conv2d(inner, pointwise, ctx.params.get("bias"), _POINT)
        return self._as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x, both weights and bias."""
        ops, x, inner = ctx.ops, ctx.saved["x"], ctx.saved["inner"]
        dy = self._as_image(dy)
        depthwise, pointwise = self._kernels(ctx)
        d_inner = ops.conv2d_backward_data(dy, pointwise, inner.shape, _POINT)
        grads = {}
        if ctx._needs_param_grads:
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
        return self._as_sample(dx, self.in_shapes), grads

    def _kernels(self, ctx: Context) -> tuple[Array, Array]:
        """Return the weights as (C, M, kh, kw) and (F, C·M, 1, 1)."""
        depthwise, pointwise = ctx.params["depthwise_weight"], ctx.params["pointwise_weight"]
        channels = len(depthwise) // self.depth_multiplier
        kernels = depthwise.reshape(channels, self.depth_multiplier, *self._inner.kernel)
        return kernels, pointwise.reshape(*pointwise.shape, 1, 1)


class SeparableConv1D(SeparableConvolution):
    """`SeparableConv2D` of sequences (C, L), or (L,) of one channel: the output is (F, L').

    ``depthwise_weight`` has shape (C·M, k), ``pointwise_weight`` (F, C·M), ``bias`` (F,).

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: Positive int, the number of steps in a depthwise kernel.
        strides: Positive int, the steps from one window to the next.
        padding: An int, (before, after), "same" (the default), "valid" or "causal".
        dilation_rate: Positive int, the distance of the steps within a kernel.
        depth_multiplier: Positive int M, the number of depthwise kernels for each channel.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        depthwise_specs: Dict with the settings of ``depthwise_weight``, or a `Param` to share.
        pointwise_specs: The same for ``pointwise_weight``.
        b_specs: The same for the bias.
        data_format: "channels_last" if samples are (L, C) and outputs (L', F); "channels_first" for
            (C, L). One of them is needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``depthwise_initializer``, ``pointwise_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.SeparableConv1D(filters=16, kernel_size=3)(x).shape
        (16, 10)
    """

    _axes = 1
    traits = replace(SeparableConvolution.traits, any_extent=True)


class SeparableConv2D(SeparableConvolution):
    """A `DepthwiseConv2D` of (C, H, W) images without bias, followed by a 1x1 `Conv2D`.

    ``depthwise_weight`` has shape (C·M, kh·kw), ``pointwise_weight`` (filters, C·M), ``bias``
    (filters,); M is ``depth_multiplier``. Sifre, 2014.

    Args:
        name: Name of the layer, a string.
        filters: Positive int, the number of output channels.
        kernel_size: An int or (height, width) of the depthwise kernels, 3 by default.
        strides: An int or (height, width).
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (height, width) an int or (before, after).
        dilation_rate: An int or (height, width), the distance of the positions within a kernel.
        depth_multiplier: Positive int M, the number of depthwise kernels for each channel.
        activation: Name of an activation, a layer, or None for none.
        use_bias: Whether to add a bias.
        depthwise_specs: Dict with the settings of ``depthwise_weight``, or a `Param` to share.
        pointwise_specs: The same for ``pointwise_weight``.
        b_specs: The same for the bias.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape (C, H, W), to create the parameters at once.
        words: Keras' ``depthwise_initializer``, ``pointwise_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.SeparableConv2D(filters=16, kernel_size=3)(x).shape
        (16, 10, 10)
    """


class Pad(Spatial):
    """A layer that adds a border around the last axes of each sample.

    Args:
        name: Name of the layer, a string.
        padding: An int for both sides of every axis behind the channels (of the only axis, if there
            is one), or a sequence with an entry for each of the last axes: an int for both sides,
            or (before, after). An image takes 1, (1, 2) for height and width, or ((0, 1), (0, 1)).
        value: The number in a 'constant' border.
        mode: 'constant'; 'reflect' for the elements next to the edge, mirrored in it; 'replicate'
            for the edge; 'circular' for the elements at the other end.
        data_format: "channels_last" if the channels are the last axis, which is not padded:
            sequences (T, F) take 1 for the steps.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (3, 32, 32))
        >>> singanet.layers.Pad(padding=(1, 2))(x).shape
        (3, 34, 36)
    """

    def __init__(
        self,
        name: Name = None,
        padding: Border = REQUIRED,
        value: float = 0.0,
        *,
        mode: str = "constant",
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self._lay_out(data_format, 1)
        self.mode = expect_one_of(name, "mode", mode, MODES)
        self.every_axis = not isinstance(padding, (tuple, list))
        self.pads = list(expect_pads(name, "padding", padding))
        self.value = value

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape with each padded axis longer by both sides."""
        shape = expect_one_input(self, in_shapes)
        least = len(self.pads) + self._is_last
        if len(shape) < least:
            raise self.shape_error(
                f"samples of at least {least} axes",
                f"sample shape {shape}",
                "give padding an entry for each of the last axes",
            )
        pads = self._by_axis(len(shape))
        expect_repeated(self, self.mode, shape, pads)
        return tuple(size + sum(ends) for size, ends in zip(shape, pads, strict=True))

    def _by_axis(self, rank: int) -> list[tuple[int, int]]:
        """Return (before, after) for each axis of a sample."""
        pads = self.pads * max(1, rank - 1) if self.every_axis else self.pads
        behind = [(0, 0)] if self._is_last else []
        return [(0, 0)] * (rank - len(pads) - len(behind)) + pads + behind

    def _asks_axes(self, in_shape: Any) -> bool:
        """Whether ``data_format`` is needed: for (T, F), unless each axis has its entry."""
        unsaid = self.data_format is None and len(in_shape) == 2
        return unsaid and (self.every_axis or len(self.pads) < 2)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the padded samples; no array is saved."""
        return ctx.ops.pad(x, [(0, 0), *self._by_axis(x.ndim - 1)], self.value, self.mode)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the inside of ``dy``: a view for a constant border."""
        return ctx.ops.pad_backward(dy, [(0, 0), *self._by_axis(dy.ndim - 1)], self.mode), {}


class EndPadding(Pad):
    """A layer that pads (C, H, W) images below and to the right with ``padding`` rows and columns.

    Before pooling with kernel 3 and stride 2 without padding it rounds the output size up, as
    Caffe's GoogLeNet needs. Behind a relu, zeros never win a maximum; otherwise pass ``value=-inf``
    for max pooling.

    Args:
        name: Name of the layer, a string.
        padding: Int, the number of rows and columns.
        value: The number in them.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (3, 32, 32))
        >>> singanet.layers.EndPadding(padding=1)(x).shape
        (3, 33, 33)
    """

    def __init__(
        self,
        name: Name = None,
        padding: int = 1,
        value: float = 0.0,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        end = (0, expect_int(name, "padding", padding, least=0))
        super().__init__(name, (end, end), value, input_shape=input_shape)


def expect_repeated(layer: Layer, mode: str, shape: Shape, pads: Sequence[tuple[int, int]]) -> None:
    """Check that samples of ``shape`` have enough elements for the borders.

    Errors: `ShapeError` if a border repeats more elements than an axis has.
    """
    most = {"reflect": [size - 1 for size in shape], "circular": shape}.get(mode)
    if most is not None and any(max(ends) > n for ends, n in zip(pads, most, strict=True)):
        raise layer.shape_error(
            f"samples of at least the size of the border {pads} by {mode!r}",
            f"sample shape {shape}",
            "use a smaller border, or 'replicate'",
        )


class Cropping(Spatial):
    """A layer that removes elements at either end of the last axes: the inverse of `Pad`.

    Args:
        name: Name of the layer, a string.
        cropping: Elements to remove, in the form of ``padding`` of `Pad`.
        data_format: As for `Pad`.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (3, 32, 32))
        >>> singanet.layers.Cropping(cropping=2)(x).shape
        (3, 28, 28)
    """

    traits = Traits(moves_only=True)

    def __init__(
        self,
        name: Name = None,
        cropping: Border = REQUIRED,
        *,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        expect_pads(name, "cropping", cropping)
        self._pad = Pad(name, cropping, data_format=data_format)
        self._lay_out(data_format, 1)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape with each cropped axis shorter by both sides."""
        shape = expect_one_input(self, in_shapes)
        self._pad.setup(shape)
        ends = self._pad._by_axis(len(shape))
        left = tuple(size - sum(pads) for size, pads in zip(shape, ends, strict=True))
        if min(left) < 1:
            raise self.shape_error(
                f"samples from which {ends} elements can be cropped, axis by axis",
                f"sample shape {shape}",
                "crop less",
            )
        return left

    def _asks_axes(self, in_shape: Any) -> bool:
        """Whether ``data_format`` is needed, as for `Pad`."""
        return self._pad._asks_axes(in_shape)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the inside, as a view."""
        sizes: Any = self.out_shapes
        inside = [
            slice(before, before + size)
            for (before, _), size in zip(self._pad._by_axis(x.ndim - 1), sizes, strict=True)
        ]
        return x[(slice(None), *inside)]

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` with a border of zeros."""
        return ctx.ops.pad(dy, [(0, 0), *self._pad._by_axis(dy.ndim - 1)], 0.0), {}
