"""Random draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Random:
    """Draws come from the generator that the caller hands in, whatever the device."""

    xp: Any

    def keep_mask(self, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
        """A boolean array, each element True with probability ``keep``."""
        # Drawn on the host, so that a seed gives the same mask on every device.
        return self.xp.asarray(rng.random(shape, dtype=np.float32) < keep)

    def bernoulli(self, rng: np.random.Generator, p: Array) -> Array:
        """A boolean array of the shape of ``p``, each element True with its probability."""
        draws: Array = self.xp.asarray(rng.random(p.shape, dtype=np.float32))
        return draws < p
