"""The geometry of sliding windows over images and volumes."""

from __future__ import annotations

from dataclasses import dataclass

Pads = tuple[tuple[int, int], ...]
"""Positions before and after along each axis: rows above and below, columns left and right."""

Pair = tuple[int, int]
"""A value along the height and one along the width."""

Sizes = tuple[int, ...]
"""A value along each axis: (height, width), or (depth, height, width)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window, axis by axis.

    With ``ceil`` sizes are rounded up: a last window may reach beyond the padding behind, if it
    begins on the image or on the padding before it.
    """

    kernel: Sizes
    stride: Sizes
    pads: Pads
    dilation: Sizes = (1, 1)
    ceil: bool = False

    @property
    def extent(self) -> Sizes:
        """How many positions the window spans along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def out_size(self, *sizes: int) -> Sizes:
        """floor((in + pads - extent) / stride) + 1 for each axis."""
        found = []
        for size, (before, after), extent, stride in zip(
            sizes, self.pads, self.extent, self.stride, strict=True
        ):
            room = size + before + after - extent
            count = room // stride + 1
            if self.ceil and room % stride and count * stride < size + before:
                count += 1
            found.append(count)
        return tuple(found)

    def reach(self, *sizes: int) -> Pads:
        """The pads, those behind at least as many as the last windows need."""
        found = []
        for size, (before, after), extent, stride, count in zip(
            sizes, self.pads, self.extent, self.stride, self.out_size(*sizes), strict=True
        ):
            found.append((before, max(after, (count - 1) * stride + extent - size - before)))
        return tuple(found)
