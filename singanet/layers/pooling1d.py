"""What max and average pooling of sequences share: the arguments."""

from __future__ import annotations

from singanet.layers.one_axis import OneAxis, along_width
from singanet.layers.pooling2d import Pooling2D
from singanet.types import Shape


class Pooling1D(OneAxis, Pooling2D):
    """Windows over each channel of sequences (C, L) or (L,); arguments as for `Conv1D`."""

    def __init__(
        self,
        name: str,
        kernel: int = 3,
        stride: int = 2,
        border_mode: str = "same",
        pad: int | None = None,
        data_format: str = "NCHW",
        input_sample_shape: Shape | None = None,
    ) -> None:
        super().__init__(
            name,
            kernel=along_width(name, "kernel", kernel, 1),
            stride=along_width(name, "stride", stride, 1),
            border_mode=border_mode,
            pad=along_width(name, "pad", pad, 0, least=0),
            data_format=data_format,
            input_sample_shape=input_sample_shape,
        )
