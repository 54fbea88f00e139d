"""Initializers that make a whole matrix of a kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from singanet.initializer.initializer import Initializer, check_finite, wrong_shape
from singanet.types import Array, Shape


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """``gain`` times orthonormal rows or columns, whichever are fewer (Saxe et al. 2014).

    A shape of more than two axes is seen as (shape[0], product of the rest).
    """

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
