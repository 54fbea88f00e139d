"""Whole numbers and reals that users pass: told apart and checked."""

from __future__ import annotations

import math
from numbers import Integral, Real
from operator import index
from typing import Any, SupportsIndex, TypeGuard

from singanet.errors import ArgumentError


def is_int(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether ``value`` is an int, or a NumPy one, of at least ``least``; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """Whether ``value`` is one finite real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_count(
    where: str,
    name: str,
    value: SupportsIndex,
    least: int,
    most: int | None = None,
    advice: str = "give a plain int",
) -> int:
    """``value`` as an int from ``least`` to ``most``. Errors: `ArgumentError` naming the argument.

    Where so many things are made at once, ``most`` keeps a number from a file from filling the
    memory.
    """
    try:
        whole = None if isinstance(value, bool) else index(value)
    except TypeError:
        whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(
            f"{where}, {name}",
            expected=f"an int {bounds}",
            received=f"{value!r}",
            advice=advice,
        )
    return whole
