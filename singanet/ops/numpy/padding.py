"""Borders around arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from singanet.base.addresses import steps
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array

_Region: TypeAlias = tuple[slice, ...]


@kernel(half="native")
def pad(
    ops: Ops, x: Array, pads: Sequence[tuple[int, int]], value: float, mode: str = "constant"
) -> Array:
    shape = [size + sum(ends) for size, ends in zip(x.shape, pads, strict=True)]
    # From the slowest axis to the fastest: images lie channels-last, and stay so.
    apart = steps(x)
    axes = sorted(range(x.ndim), key=lambda axis: -abs(apart[axis]))
    laid: Array = ops.xp.full([shape[axis] for axis in axes], value, x.dtype)
    full = laid.transpose(sorted(range(x.ndim), key=axes.__getitem__))
    full[inside(pads, x.shape)] = x
    if mode != "constant":
        for axis, ends in enumerate(pads):
            for border, source in _sources(mode, axis, x.shape[axis], ends):
                full[border] = full[source]
    return full


@kernel(half="lift")
def pad_backward(ops: Ops, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> Array:
    shape = [size - sum(ends) for size, ends in zip(dy.shape, pads, strict=True)]
    if mode == "constant":
        return dy[inside(pads, shape)]
    full = dy.copy(order="K")
    for axis in reversed(range(dy.ndim)):
        for border, source in _sources(mode, axis, shape[axis], pads[axis]):
            given = full[border]
            if mode == "replicate":
                given = given.sum(axis=axis, keepdims=True)
            ops.xp.add(full[source], given, out=full[source])
    return full[inside(pads, shape)]


def inside(pads: Sequence[tuple[int, int]], shape: Sequence[int]) -> _Region:
    """Where an array of ``shape`` lies within its borders."""
    ends = zip(pads, shape, strict=True)
    return tuple(slice(before, before + size) for (before, _), size in ends)


def _sources(
    mode: str, axis: int, size: int, ends: tuple[int, int]
) -> Iterator[tuple[_Region, _Region]]:
    """The borders along ``axis`` that are not empty, and what they repeat."""
    (before, after), end = ends, ends[0] + size
    borders = slice(0, before), slice(end, end + after)
    if mode == "replicate":
        sources = slice(before, before + 1), slice(end - 1, end)
    elif mode == "circular":
        sources = slice(size, end), slice(before, before + after)
    else:
        # Without the edge itself; of a slice that goes back to the first, the end is None.
        last = end - 2 - after
        sources = slice(2 * before, before, -1), slice(end - 2, last if last >= 0 else None, -1)
    for border, source, count in zip(borders, sources, ends, strict=True):
        if count:
            all_before = (slice(None),) * axis
            yield (*all_before, border), (*all_before, source)
