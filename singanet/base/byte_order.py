"""Numbers in the machine's own byte order, in which kernels and views read them."""

from __future__ import annotations

from typing import Any

import numpy as np


def native(array: Any) -> Any:
    """``array`` in the machine's byte order: itself where it is, as is what is no array."""
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return array.astype(dtype.newbyteorder("="))
    return array
