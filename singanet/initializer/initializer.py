"""The base class of initializers, and checks of numbers and shapes for all of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.described import CheckedType
from singanet.errors import ArgumentError
from singanet.types import Array, Shape


class Initializer(metaclass=CheckedType):
    """Draws the first values of a parameter; subclass it for a rule of your own.

    ``copies`` is how many float64 arrays of the shape it holds at a time.
    """

    copies: ClassVar[int] = 2

    @abstractmethod
    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """A new float64 array of ``shape``; ``fans`` is (fan in, fan out), (0, 0) if unknown."""

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Whether a large array may be drawn in pieces, one after the other, to the same numbers.

        The answer of a class does not count for classes that inherit from it.
        """
        return False


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
        if not is_number(number):
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
