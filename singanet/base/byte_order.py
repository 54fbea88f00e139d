"""Numbers in the machine's own byte order, in which kernels and views read them."""

from __future__ import annotations

from typing import Any

import numpy as np


def native(array: Any, xp: Any = np) -> Any:
    """``array`` in the machine's byte order: itself where it is, as is what is no array.

    One of NumPy's comes over to the array module ``xp``.
    """
    # The common case first: small steps ask several times.
    if xp is np and type(array) is np.ndarray and array.dtype.isnative:
        return array
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if xp is not np and type(array) is np.ndarray:
        return xp.asarray(array)
    return array
