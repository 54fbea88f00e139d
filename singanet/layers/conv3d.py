"""Three-dimensional convolutions."""

from __future__ import annotations

from typing import Any

from singanet.layers.conv2d import Conv2D
from singanet.layers.conv2d_transpose import Conv2DTranspose
from singanet.layers.layer import ParamSpecs
from singanet.types import Shape


class Conv3D(Conv2D):
    """Cross-correlation of (C, D, H, W) volumes with ``nb_kernels`` kernels.

    ``weight`` has shape (F, C/groups·kd·kh·kw), channel-major; ``bias`` has shape (F,). The other
    arguments are as for `Conv2D`, each an int or (depth, height, width).
    """

    axes = 3

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
        input_sample_shape: Shape | None = None,
        *,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__(
            name,
            nb_kernels,
            kernel,
            stride,
            border_mode,
            use_bias=use_bias,
            W_specs=W_specs,
            b_specs=b_specs,
            pad=pad,
            input_sample_shape=input_sample_shape,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        )


class Conv3DTranspose(Conv2DTranspose):
    """`Conv2DTranspose` of (C, D, H, W) volumes: the output is (F, D', H', W').

    ``weight`` has shape (C, F/groups·kd·kh·kw), ``bias`` (F,). Sizes are ints or (depth, height,
    width).
    """

    axes = 3
