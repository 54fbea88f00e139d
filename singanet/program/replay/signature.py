"""Signatures of calls: one program serves all calls of one signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_NOTHING: frozenset[Any] = frozenset()


def shapes_of_feed(feed: Mapping[str, Any]) -> tuple[Any, ...]:
    """The facts of the fed arrays that determine a program."""
    return tuple(
        (name, *((part.shape, part.strides, part.dtype) for part in given))
        if isinstance(given, (list, tuple))
        else (name, facts(given))
        for name, given in feed.items()
    )


def shapes_of_targets(y: Any, weight: Any) -> tuple[Any, ...]:
    """The facts of targets and weights that determine a program."""
    parts = [*(y[name] for name in sorted(y)), weight] if isinstance(y, Mapping) else [y, weight]
    return tuple(
        (part.shape, part.strides, part.dtype) if type(part) is np.ndarray else type(part)
        for part in parts
    )


def facts(value: Any) -> Any:
    """The facts of an array or dict of arrays that determine a program; of all else the type."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype
    if value is None:
        return None
    # Asking for an abstract class takes long, and so do calls.
    if type(value) is dict:
        if not value:
            return _NOTHING
        array = np.ndarray
        return frozenset(
            [
                (name, part.shape, part.strides, part.dtype)
                if type(part) is array
                else (name, facts(part))
                for name, part in value.items()
            ]
        )
    if isinstance(value, Mapping):
        return facts(dict(value))
    # A device's.
    if hasattr(value, "strides"):
        return type(value), value.shape, value.strides, value.dtype
    return type(value)


def facts_of_feed(feed: Mapping[str, Any]) -> Any:
    """The `facts` of the arguments that became ``feed`` without conversion.

    For a net with a single input the argument is the array.
    """
    if len(feed) == 1:
        (part,) = feed.values()
        return (list, *map(facts, part)) if isinstance(part, (list, tuple)) else facts(part)
    return frozenset(
        [
            (name, (list, *map(facts, part)))
            if isinstance(part, (list, tuple))
            else (name, part.shape, part.strides, part.dtype)
            if type(part) is np.ndarray
            else (name, facts(part))
            for name, part in feed.items()
        ]
    )
