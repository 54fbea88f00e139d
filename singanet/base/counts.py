"""Whole numbers and reals that users pass: told apart and checked."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, SupportsIndex

from singanet.errors import ArgumentError


def is_int(value: Any, least: int = 1) -> bool:
    """Whether ``value`` is an int, or a NumPy one, of at least ``least``; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """Whether ``value`` is one finite real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_count(where: str, name: str, value: SupportsIndex, least: int) -> int:
    """``value`` as an int of at least ``least``. Errors: `ArgumentError` naming the argument."""
    index = getattr(type(value), "__index__", None)
    whole = None if index is None or isinstance(value, bool) else int(index(value))
    if whole is None or whole < least:
        raise ArgumentError(
            f"{where}, {name}",
            expected=f"a whole number of at least {least}",
            received=f"{value!r}",
            advice="give a plain int",
        )
    return whole
