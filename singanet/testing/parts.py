"""Inputs and outputs of layers, one array or several, treated alike."""

from __future__ import annotations

from typing import Any

from singanet.layers.layer import Layer
from singanet.ops import ops_for
from singanet.params.param import Param


def parts_of(value: Any) -> list[Any]:
    """A list of one array or of several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def map_parts(function: Any, value: Any) -> Any:
    """``function`` of one array, or of each of several."""
    return (
        [function(part) for part in value] if isinstance(value, (list, tuple)) else function(value)
    )


def on_host(array: Any) -> Any:
    """The array as a NumPy one."""
    return array.get() if hasattr(array, "get") else array


def arrays_on(layer: Layer) -> dict[str, int]:
    """Which attributes of the layer, or entries of theirs, are arrays; parameters apart."""
    found: dict[str, int] = {}
    for attribute, value in vars(layer).items():
        for part in value.values() if isinstance(value, dict) else parts_of(value):
            if hasattr(part, "dtype") and hasattr(part, "shape") and not isinstance(part, Param):
                found[attribute] = found.get(attribute, 0) + 1
    return found


def spread(array: Any) -> Any:
    """The same values in memory with gaps and axes in reverse, so that nothing is contiguous."""
    wide = ops_for(array).xp.zeros((*array.shape[::-1], 2), array.dtype)
    spaced = wide[..., 0].transpose()
    spaced[...] = array
    return spaced


LAYOUTS = 4
"""The number of arrays that `laid_out` gives."""


def laid_out(array: Any) -> list[Any]:
    """The same values in four memories: without gaps, `spread`, backwards, with swapped axes.

    In the last one the stride of an axis of one element is wrong: no kernel may read it.
    """
    xp = ops_for(array).xp
    swapped = xp.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    mirror = (slice(None, None, -1),) * array.ndim
    return [array, spread(array), array[mirror].copy()[mirror], _odd(xp, swapped)]


def _odd(xp: Any, array: Any) -> Any:
    """``array`` with other strides for axes of one element."""
    odd = [7 * s + 8 if n == 1 else s for n, s in zip(array.shape, array.strides, strict=True)]
    return xp.lib.stride_tricks.as_strided(array, array.shape, odd) if array.size else array
