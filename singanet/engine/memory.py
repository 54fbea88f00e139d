"""Which arrays share memory, and copies of those that somebody else may write into."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.types import CSRMatrix


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays in ``value``, in lists, tuples, dicts and contexts."""
    if type(value) is np.ndarray:
        yield value  # nearly all: asking for abstract classes takes long
        return
    if type(value) is Context:
        value = value.saved
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(part)
    elif hasattr(value, "nbytes") and hasattr(value, "strides"):
        yield value
    elif isinstance(value, Mapping):
        yield from arrays_in(list(value.values()))


def root_of(array: Any) -> Any:
    """The array that owns the memory of ``array``, of NumPy or CuPy."""
    while hasattr(getattr(array, "base", None), "nbytes"):
        array = array.base
    return array


def roots_in(value: Any) -> frozenset[int]:
    """Whose memory the arrays in ``value`` lie in: valid as long as these live."""
    return frozenset(id(root_of(array)) for array in arrays_in(value))


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
    return value.copy(order="K") if id(root_of(value)) in roots else value
