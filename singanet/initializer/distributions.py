"""Initializers that draw every element from one given distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.errors import ArgumentError
from singanet.initializer.initializer import Initializer, check_finite, check_not_negative
from singanet.types import Array, Shape


@dataclass(frozen=True)
class Constant(Initializer):
    """Every element is ``value``."""

    value: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, value=self.value)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        return np.full(shape, self.value, np.float64)

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Yes; see `Initializer`."""
        return type(self) is Constant


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform over [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_finite(self, low=self.low, high=self.high)
        if self.low > self.high:
            raise ArgumentError(
                "Uniform",
                expected="low <= high",
                received=f"low={self.low}, high={self.high}",
                advice="swap the two bounds",
            )

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        return rng.uniform(self.low, self.high, shape)

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Yes; see `Initializer`."""
        return type(self) is Uniform


@dataclass(frozen=True)
class Gaussian(Initializer):
    """Normal with the given ``mean`` and standard deviation ``std``."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        check_finite(self, mean=self.mean, std=self.std)
        check_not_negative(self, std=self.std)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        return rng.normal(self.mean, self.std, shape)

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Yes; see `Initializer`."""
        return type(self) is Gaussian


@dataclass(frozen=True)
class TruncatedNormal(Gaussian):
    """Normal, redrawn wherever it falls further than two ``std`` from ``mean``."""

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        drawn = np.asarray(rng.standard_normal(shape))
        # Each round leaves 4.6 % of what was outside, so even 1e9 elements need few rounds.
        while (outside := np.abs(drawn) > 2).any():
            drawn[outside] = rng.standard_normal(int(outside.sum()))
        return np.asarray(drawn * self.std + self.mean)
