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
