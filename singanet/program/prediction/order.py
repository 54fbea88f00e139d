"""The order in which a kernel wants an array's elements, told by the order of numbered ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from singanet.types import Array

_FIRST = 0x3F000000
"""Bits of a float from which on a billion follow that are numbers, none of them denormal."""

_CHUNK = 1 << 16


@dataclass(frozen=True)
class LoopNest:
    """Nested loops over an array, the outermost first: how often, and how far apart elements are.

    ``axes`` are those of the array that the loops can be told from, each with its extent and the
    one to which it is filled up.
    """

    counts: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[tuple[int, int], ...]

    def array(self, memory: Array) -> Array:
        """The elements in their own order, of ``memory`` in which they lie in this one."""
        whole = np.zeros([filled for _, filled in self.axes], memory.dtype)
        bytes_apart = [stride * whole.itemsize for stride in self.strides]
        as_strided(whole, self.counts, bytes_apart)[...] = memory.reshape(self.counts)
        return np.ascontiguousarray(whole[tuple(slice(n) for n, _ in self.axes)]).reshape(-1)


def numbered(size: int) -> Array:
    """The bytes of ``size`` floats, each with a number of its own in its bits."""
    return np.arange(_FIRST, _FIRST + size, dtype=np.int32).view(np.uint8)


def order_of(numbers: Array, size: int) -> LoopNest | None:
    """The order that ``size`` `numbered` elements may be in, zeros at the ends of axes, or None.

    It goes by the first elements of each loop: that all others follow is to be seen by `array`.
    """
    bits = numbers.view(np.int32)
    if not len(bits) or bits[0] != _FIRST:
        return None
    loops: list[tuple[int, int]] = []
    while len(bits) > 1:
        count, stride = _run(bits)
        if count < len(bits) and not bits[count]:
            # Filled up to where the next one begins.
            after = np.flatnonzero(bits[count:])
            count = count + int(after[0]) if after.size else len(bits)
        if len(bits) % count or stride <= 0:
            return None
        loops.append((count, stride))
        bits = bits[::count]
    found = _axes(loops, size)
    if found is None:
        return None
    axes, strides = found
    counts = tuple(count for count, _ in loops[::-1])
    return LoopNest(counts, tuple(strides[stride] for _, stride in loops[::-1]), axes)


def _axes(
    loops: list[tuple[int, int]], size: int
) -> tuple[tuple[tuple[int, int], ...], dict[int, int]] | None:
    """Axes that are filled up, outermost first, and what the strides of loops are with these."""
    axes: list[tuple[int, int]] = []
    strides: dict[int, int] = {}
    # The axis begins at one stride in the array, at another where the axes are filled up.
    start, filled_start, reached = 1, 1, 1
    for count, stride in sorted(loops, key=lambda loop: loop[1]):
        if stride != reached:
            if not start < stride < reached or stride % start:
                return None
            axes.append((stride // start, reached // start))
            filled_start *= reached // start
            start = reached = stride
        strides[stride] = stride // start * filled_start
        reached *= count
    if size % start or reached < size:
        return None
    axes.append((size // start, reached // start))
    return tuple(axes[::-1]), strides


def _run(bits: Array) -> tuple[int, int]:
    """How many elements from the first on are equally far apart, and how far."""
    stride = int(bits[1]) - int(bits[0])
    for start in range(0, len(bits) - 1, _CHUNK):
        other = np.diff(bits[start : start + _CHUNK + 1]) != stride
        if other.any():
            return start + int(np.argmax(other)) + 1, stride
    return len(bits), stride
