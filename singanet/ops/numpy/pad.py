"""Borders around arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.types import Array


class Padding:
    """Kernels that lay arrays into larger ones."""

    xp: Any

    def pad(self, x: Array, pads: Sequence[tuple[int, int]], value: float) -> Array:
        """``x`` with (before, after) elements of ``value`` along each axis, ordered as ``x``."""
        shape = [size + sum(ends) for size, ends in zip(x.shape, pads, strict=True)]
        # From the slowest axis to the fastest: images lie channels-last, and stay so.
        axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
        laid: Array = self.xp.full([shape[axis] for axis in axes], value, x.dtype)
        full = laid.transpose(sorted(range(x.ndim), key=axes.__getitem__))
        inside = [
            slice(before, before + size) for size, (before, _) in zip(x.shape, pads, strict=True)
        ]
        full[tuple(inside)] = x
        return full
