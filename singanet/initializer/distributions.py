"""Initializers that ask for no fans: one distribution for every element, or a matrix of a kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.initializer.initializer import (
    Initializer,
    check_finite,
    check_not_negative,
    wrong_shape,
)
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


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """``gain`` times orthonormal rows or columns, whichever are fewer (Saxe et al. 2014).

    A shape of more than two axes is seen as (shape[0], product of the rest).
    """

    # The draw, and four of NumPy's on the way to Q.
    copies: ClassVar[int] = 5
    gain: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, gain=self.gain)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        if len(shape) < 2:
            raise wrong_shape("Orthogonal", "a shape of at least two axes", shape)
        rows, columns = shape[0], math.prod(shape[1:])
        drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        # The signs of R's diagonal make the draw uniform over the orthogonal matrices.
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        matrix = q if rows >= columns else q.T
        return np.ascontiguousarray(self.gain * matrix).reshape(shape)


@dataclass(frozen=True)
class Eye(Initializer):
    """``gain`` on the diagonal of a matrix, zero elsewhere."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, gain=self.gain)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        if len(shape) != 2:
            raise wrong_shape("Eye", "a shape of two axes", shape)
        return np.asarray(self.gain * np.eye(*shape))


@dataclass(frozen=True)
class Dirac(Initializer):
    """1 where filter k reads channel k in the middle of its window, zero elsewhere.

    So a convolution passes its channels on, each of ``groups`` by itself. A weight of two axes,
    such as (F, C·kh·kw) of `Conv2D`, needs the ``kernel``, (kh, kw); Zagoruyko and Komodakis, 2017.
    """

    kernel: Sequence[int] | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        kernel = (1,) if self.kernel is None else self.kernel
        several = isinstance(kernel, (tuple, list)) and all(is_int(size) for size in kernel)
        if not several or not kernel or not is_int(self.groups):
            raise ArgumentError(
                "Dirac",
                expected="kernel=(height, width) and a number of groups, all of at least 1",
                received=f"kernel={self.kernel!r}, groups={self.groups!r}",
                advice="write Dirac((3, 3)) for a Conv2D of 3 x 3",
            )
        if self.kernel is not None:
            object.__setattr__(self, "kernel", tuple(self.kernel))

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        window = tuple(shape[2:]) if self.kernel is None else tuple(self.kernel)
        values = np.zeros(shape)
        taps = math.prod(window)
        if not window or len(shape) < 2 or math.prod(shape[1:]) % taps or shape[0] % self.groups:
            raise wrong_shape("Dirac", f"filters (F, C, *{window or 'kernel'}), F in groups", shape)
        filters = values.reshape(shape[0], -1, taps)
        middle = int(np.ravel_multi_index([size // 2 for size in window], window))
        of_group = shape[0] // self.groups
        for k in range(min(of_group, filters.shape[1])):
            filters[k::of_group, k, middle] = 1.0
        return values
