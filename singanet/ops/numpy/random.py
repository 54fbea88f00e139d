"""Random draws, and looks at values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Random:
    """Draws come from the generator that the caller hands in, whatever the device."""

    xp: Any

    def uniform(self, rng: np.random.Generator, shape: Shape) -> Array:
        """float32 numbers from 0 to below 1."""
        # Drawn on the host, so that a seed gives the same numbers on every device.
        return self.xp.asarray(rng.random(shape, dtype=np.float32))

    def keep_mask(self, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
        """A boolean array, each element True with probability ``keep``."""
        mask: Array = self.uniform(rng, shape) < keep
        return mask

    def bernoulli(self, rng: np.random.Generator, p: Array) -> Array:
        """A boolean array of the shape of ``p``, each element True with its probability."""
        mask: Array = self.uniform(rng, p.shape) < p
        return mask

    def check(self, function: Callable[[Array], None], array: Array) -> None:
        """Call ``function``, which raises an error for values that will not do."""
        function(array)
