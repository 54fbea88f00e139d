"""The geometry of sliding windows over images."""

from __future__ import annotations

from dataclasses import dataclass

Pads = tuple[tuple[int, int], tuple[int, int]]
"""Rows above and below, columns left and right."""

Pair = tuple[int, int]
"""A value along the height and one along the width."""


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window: all values as (height, width)."""

    kernel: Pair
    stride: Pair
    pads: Pads
    dilation: Pair = (1, 1)

    @property
    def extent(self) -> Pair:
        """How many rows and columns the window spans."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return dh * (kh - 1) + 1, dw * (kw - 1) + 1

    def out_size(self, height: int, width: int) -> Pair:
        """floor((in + pads - extent) / stride) + 1 for each axis."""
        (top, bottom), (left, right) = self.pads
        eh, ew = self.extent
        return (
            (height + top + bottom - eh) // self.stride[0] + 1,
            (width + left + right - ew) // self.stride[1] + 1,
        )
