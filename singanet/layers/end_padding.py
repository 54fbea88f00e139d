"""GoogLeNet's padding at the end of images."""

from __future__ import annotations

from singanet.layers.arguments import expect_int
from singanet.layers.pad import Pad
from singanet.types import Shape


class EndPadding(Pad):
    """``pad`` rows below and columns to the right of (C, H, W) images, of ``value``.

    Before pooling of kernel 3 and stride 2 without padding it makes the output size round up, as
    Caffe's GoogLeNet needs. Behind a relu the zeros never win a maximum; else pass
    ``value=-inf`` for max pooling.
    """

    def __init__(
        self,
        name: str,
        pad: int = 1,
        value: float = 0.0,
        input_sample_shape: Shape | None = None,
    ) -> None:
        end = (0, expect_int(name, "pad", pad, least=0))
        super().__init__(name, (end, end), value, input_sample_shape)
