"""One-dimensional convolution."""

from __future__ import annotations

from typing import Any

from singanet.layers.conv2d import Conv2D
from singanet.layers.geometry import OneAxis, one_row
from singanet.layers.layer import ParamSpecs
from singanet.types import Shape


class Conv1D(OneAxis, Conv2D):
    """Cross-correlation of sequences (C, L), or (L,) of one channel, with ``nb_kernels`` kernels.

    The output is (F, L'). ``weight`` has shape (F, C/groups·k), channel-major; ``bias`` has shape
    (F,). The other arguments are as for `Conv2D`, each one int; ``pad`` may be (before, after). The
    ``border_mode`` 'causal' pads before alone, so that no output sees what comes after it.
    """

    keeps_channels = False

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
