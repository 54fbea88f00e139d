"""One-dimensional convolutions."""

from __future__ import annotations

from typing import Any

from singanet.layers.conv2d import Conv2D
from singanet.layers.conv2d_transpose import Conv2DTranspose
from singanet.layers.depthwise_conv2d import DepthwiseConv2D
from singanet.layers.geometry import OneAxis, one_row
from singanet.layers.layer import ParamSpecs
from singanet.layers.separable_conv2d import SeparableConv2D
from singanet.types import Shape


class Conv1D(OneAxis, Conv2D):
    """Cross-correlation of sequences (C, L), or (L,) of one channel, with ``nb_kernels`` kernels.

    The output is (F, L'). ``weight`` has shape (F, C/groups·k), channel-major; ``bias`` has shape
    (F,). The other arguments are as for `Conv2D`, each one int; ``pad`` may be (before, after). The
    ``border_mode`` 'causal' pads before alone, so that no output sees what comes after it. L may be
    None, any length, where zeros pad.
    """

    keeps_channels = False
    any_extent = True

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
        input_sample_shape: Shape | None = None,
        *,
        dilation: int = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__(
            name,
            nb_kernels,
            cudnn_prefer=cudnn_prefer,
            workspace_byte_limit=workspace_byte_limit,
            use_bias=use_bias,
            W_specs=W_specs,
            b_specs=b_specs,
            input_sample_shape=input_sample_shape,
            groups=groups,
            padding_mode=padding_mode,
            **one_row(name, kernel, stride, border_mode, pad, dilation),
        )


class Conv1DTranspose(OneAxis, Conv2DTranspose):
    """`Conv2DTranspose` of sequences (C, L), or (L,) of one channel: the output is (F, L').

    ``weight`` has shape (C, F/groups·k), ``bias`` (F,). Arguments are ints; ``pad`` may be
    (before, after).
    """

    keeps_channels = False
    grows = True

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: int = 3,
        stride: int = 1,
        border_mode: str = "same",
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        output_padding: int | None = None,
        input_sample_shape: Shape | None = None,
        *,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            name,
            nb_kernels,
            use_bias=use_bias,
            W_specs=W_specs,
            b_specs=b_specs,
            output_padding=None if output_padding is None else (0, output_padding),
            input_sample_shape=input_sample_shape,
            groups=groups,
            **one_row(name, kernel, stride, border_mode, pad, dilation),
        )


class DepthwiseConv1D(OneAxis, DepthwiseConv2D):
    """`DepthwiseConv2D` of sequences (C, L), or (L,) of one channel: the output is (C·M, L').

    ``weight`` has shape (C·M, k), ``bias`` (C·M,). Other arguments are as for `Conv1D`.
    """

    keeps_channels = False
    any_extent = True

    def __init__(
        self,
        name: str,
        kernel: int = 3,
        stride: int = 1,
        border_mode: str = "same",
        depth_multiplier: int = 1,
        use_bias: bool = True,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: Shape | None = None,
        *,
        dilation: int = 1,
    ) -> None:
        super().__init__(
            name,
            depth_multiplier=depth_multiplier,
            use_bias=use_bias,
            W_specs=W_specs,
            b_specs=b_specs,
            input_sample_shape=input_sample_shape,
            **one_row(name, kernel, stride, border_mode, pad, dilation),
        )


class SeparableConv1D(OneAxis, SeparableConv2D):
    """`SeparableConv2D` of sequences (C, L), or (L,) of one channel: the output is (F, L').

    ``depthwise_weight`` has shape (C·M, k), ``pointwise_weight`` (F, C·M), ``bias`` (F,). Other
    arguments are as for `Conv1D`.
    """

    keeps_channels = False
    any_extent = True

    def __init__(
        self,
        name: str,
        nb_kernels: int,
        kernel: int = 3,
        stride: int = 1,
        border_mode: str = "same",
        depth_multiplier: int = 1,
        use_bias: bool = True,
        depthwise_specs: ParamSpecs = None,
        pointwise_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        pad: Any = None,
        input_sample_shape: Shape | None = None,
        *,
        dilation: int = 1,
    ) -> None:
        super().__init__(
            name,
            nb_kernels,
            depth_multiplier=depth_multiplier,
            use_bias=use_bias,
            depthwise_specs=depthwise_specs,
            pointwise_specs=pointwise_specs,
            b_specs=b_specs,
            input_sample_shape=input_sample_shape,
            **one_row(name, kernel, stride, border_mode, pad, dilation),
        )
