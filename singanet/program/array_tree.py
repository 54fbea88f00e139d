"""Arrays inside of tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.types import Array


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
