"""Numbers that gradients are multiplied by: of Python, or arrays without axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from singanet.ops import ops_for
from singanet.types import Array

Scale: TypeAlias = float | Array


def is_one(scale: Scale) -> bool:
    """Whether a gradient times ``scale`` is itself; of an array nobody asks its value."""
    return isinstance(scale, (int, float)) and scale == 1


def in_type(xp: Any, number: Any, dtype: Any) -> Any:
    """``number`` for arithmetic with arrays of ``dtype``, which it must not widen."""
    return xp.asarray(number, dtype) if hasattr(number, "dtype") else number


def plain(scale: Scale) -> Scale:
    """``scale`` as a float of Python, unless only a device or a recording knows it."""
    known = type(scale) is np.ndarray or isinstance(scale, np.floating)
    return float(scale) if known else scale


def within(xp: Any, norm: Any, limit: float) -> Any:
    """min(1, ``limit`` / ``norm``); 1 for a norm that is no number, so that it is seen."""
    return limit / xp.fmax(norm, limit)


def module_of(values: Sequence[Any]) -> Any:
    """The array module of ``values``."""
    return ops_for(values[0]).xp if values else np


def on_host(xp: Any) -> bool:
    """Whether ``xp`` is NumPy, or what records its calls."""
    return str(xp.__name__) == "numpy"
