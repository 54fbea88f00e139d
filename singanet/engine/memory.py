"""Which memory arrays lie in, and copies of arrays that somebody else may write into."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.types import CSRMatrix


def arrays_in(value: Any) -> list[Any]:
    """The arrays in ``value``, in their order.

    Lists, tuples, mappings, contexts and data classes are looked into, as layers save them.
    """
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
            if not isinstance(part, np.generic):
                found.append(part)
        elif isinstance(part, Mapping):
            left += [*part.values()][::-1]
        elif hasattr(type(part), "__dataclass_fields__"):
            left += [getattr(part, field.name, None) for field in fields(part)][::-1]
    return found


def base_of(array: Any) -> Any:
    """The array whose memory ``array`` is a view of; None if it has memory of its own."""
    base = getattr(array, "base", None)
    # An array's interface is made anew when asked for; strided views have another base.
    if isinstance(base, np.ndarray) or hasattr(base, "__array_interface__"):
        return base
    return base if hasattr(type(base), "__cuda_array_interface__") else None


def root_of(array: Any) -> Any:
    """The array that owns the memory of ``array``."""
    while (base := base_of(array)) is not None:
        array = base
    return array


def roots_in(value: Any) -> dict[int, Any]:
    """The arrays that own the memory of all arrays in ``value``, by identity."""
    roots = {}
    for array in arrays_in(value):
        # Most own their memory.
        root = array if array.base is None else root_of(array)
        roots[id(root)] = root
    return roots


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
