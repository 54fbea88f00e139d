"""Where arrays lie in memory, and arrays inside of tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char
from typing import Any

import numpy as np

from singanet.types import Array


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


def map_arrays(value: Any, change: Callable[[Array], Any]) -> Any:
    """``value`` with every array in it, also in tuples, lists and dicts, changed."""
    return map_leaves(value, np.ndarray, change, "__cuda_array_interface__")


def map_leaves(
    value: Any, kind: type, change: Callable[[Any], Any], or_has: str | None = None
) -> Any:
    """``value`` with all of ``kind`` in it, also in tuples, lists and dicts, changed.

    So is what is of a class that has the attribute ``or_has``.
    """
    if isinstance(value, kind):
        return change(value)
    own = type(value)
    if own is tuple:
        return tuple([map_leaves(part, kind, change, or_has) for part in value])
    if own is list:
        return [map_leaves(part, kind, change, or_has) for part in value]
    if own is dict:
        return {key: map_leaves(part, kind, change, or_has) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return own(*[map_leaves(part, kind, change, or_has) for part in value])
    if or_has is not None and hasattr(own, or_has):
        return change(value)
    return value
