"""Checks of the numbers and shapes that initializers are given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from singanet.errors import ArgumentError
from singanet.types import Shape


def wrong_shape(name: str, expected: str, shape: Shape) -> ArgumentError:
    """The error for a shape that the initializer ``name`` cannot fill."""
    return ArgumentError(
        name,
        expected=expected,
        received=f"shape {tuple(shape)}",
        advice="choose another initializer for this parameter",
    )


def check_finite(initializer: object, **numbers: Any) -> None:
    """Raise unless every one of ``numbers`` is a finite number."""
    for key, number in numbers.items():
        known = isinstance(number, (int, float, np.integer, np.floating))
        if not known or isinstance(number, bool) or not math.isfinite(number):
            raise ArgumentError(
                type(initializer).__name__,
                expected=f"{key} to be a finite number",
                received=repr(number),
                advice=f"give {key} a number",
            )


def check_not_negative(initializer: object, **numbers: float) -> None:
    """Raise if one of ``numbers`` is negative."""
    for key, number in numbers.items():
        if number < 0:
            raise ArgumentError(
                type(initializer).__name__,
                expected=f"{key} >= 0",
                received=repr(number),
                advice=f"give {key} a number that is not negative",
            )
