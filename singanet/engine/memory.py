"""Arrays that share memory, and copies of arrays that somebody else may write into."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.types import CSRMatrix


def arrays_in(value: Any) -> list[Any]:
    """The arrays in ``value``, in lists, tuples, dicts and contexts, in their order."""
    found, left = [], [value]
    while left:
        part = left.pop()
        if type(part) is np.ndarray:
            found.append(part)  # nearly all: asking for abstract classes takes long
            continue
        if type(part) is Context:
            part = part.saved
        if isinstance(part, (list, tuple)):
            left += part[::-1]
        elif isinstance(part, dict):
            left += [*part.values()][::-1]
        elif hasattr(part, "nbytes") and hasattr(part, "strides"):
            found.append(part)
        elif isinstance(part, Mapping):
            left += [*part.values()][::-1]
    return found


def root_of(array: Any) -> Any:
    """The array that owns the memory of ``array``, of NumPy or CuPy."""
    while hasattr(getattr(array, "base", None), "nbytes"):
        array = array.base
    return array


def roots_in(value: Any) -> frozenset[int]:
    """Whose memory the arrays in ``value`` lie in: valid as long as these live."""
    roots = []
    for array in arrays_in(value):
        # Most own their memory.
        roots.append(id(array if array.base is None else root_of(array)))
    return frozenset(roots)


def apart_from(value: Any, roots: Collection[int]) -> Any:
    """``value``, a feed or outputs, with copies of the arrays that lie in the memory of ``roots``.

    Sparse matrices are copied in any case, as they are small.
    """
    if isinstance(value, Mapping):
        return {name: apart_from(part, roots) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = (apart_from(part, roots) for part in value)
        return list(parts) if isinstance(value, list) else tuple(parts)
    if type(value) is CSRMatrix:
        return value.mapped(lambda array: array.copy(), value.dtype)
    root = value if value.base is None else root_of(value)
    return value.copy(order="K") if id(root) in roots else value
