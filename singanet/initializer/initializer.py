"""What every initializer is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from singanet.types import Array, Shape


class Initializer(ABC):
    """Draws the first values of a parameter; subclass it for a rule of your own."""

    @abstractmethod
    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """A new float64 array of ``shape``; ``fans`` is (fan in, fan out), (0, 0) if unknown."""
