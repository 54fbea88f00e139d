"""Where arrays lie in memory."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np


def address(array: Any) -> int:
    """Where the first element lies."""
    if isinstance(array, np.ndarray):
        flags = array.flags
        if flags.c_contiguous and flags.writeable and array.size and array.dtype.kind in "fiub":
            # A third of the time that NumPy takes to tell it.
            memory: Any = array
            return addressof(c_char.from_buffer(memory))
        # A dict made anew each time would have its keys enter and leave Python's interned strings.
        return int(array.ctypes.data)
    told = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(told["data"][0])


def steps(array: Any) -> tuple[int, ...]:
    """The bytes from one element to the next along each axis.

    NumPy's ``strides`` may hold any number for an axis of one element, and for an empty array. Here
    such an axis has the step of C order: the bytes that the next axis spans.
    """
    made: list[int] = []
    step, empty = array.itemsize, not array.size
    for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        made.append(step if empty or extent == 1 else stride)
        step = made[-1] * max(extent, 1)
    return tuple(reversed(made))
