"""Borders around arrays."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="native")
def pad(ops: Ops, x: Array, pads: Sequence[tuple[int, int]], value: float) -> Array:
    """See `Ops`."""
    shape = [size + sum(ends) for size, ends in zip(x.shape, pads, strict=True)]
    # From the slowest axis to the fastest: images lie channels-last, and stay so.
    axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    laid: Array = ops.xp.full([shape[axis] for axis in axes], value, x.dtype)
    full = laid.transpose(sorted(range(x.ndim), key=axes.__getitem__))
    inside = [slice(before, before + size) for size, (before, _) in zip(x.shape, pads, strict=True)]
    full[tuple(inside)] = x
    return full
