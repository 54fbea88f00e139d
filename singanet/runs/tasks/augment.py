"""Training images moved a little, so that a net learns what does not depend on the place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from singanet.data import ArrayLoader, Batch
from singanet.types import Array

__all__ = ["AugmentedImages", "shifted"]


class AugmentedImages:
    """The batches of ``loader``, images (N, C, H, W), each time drawn anew.

    Half of the images are shifted by up to an eighth of their size, zeros coming in (He et al.,
    2016, pad and crop by as much); with ``flip`` half are mirrored left to right. The draws
    depend on ``seed`` and the epoch alone: an image is moved as it is by any number of processes
    that split the batches of ``loader``.
    """

    def __init__(self, loader: ArrayLoader, seed: int, flip: bool = False) -> None:
        self.loader = loader
        self._size = loader.x.shape[2:]  # type: ignore[union-attr]
        self.seed = seed
        self.flip = flip
        self.rank, self.world_size = loader.rank, loader.world_size

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        # The third number keeps these draws apart from those that shuffle.
        rng = np.random.default_rng([self.seed, self.loader.epoch, 1])
        # Each process draws for the whole batch, of which it has every so many an image.
        loader, mine = self.loader, slice(self.rank, None, self.world_size)
        size = loader.batch_size
        for _ in range(loader.position):
            self._draws(size, rng)
        for k, (x, y) in enumerate(loader, loader.position):
            count = min(size, loader.samples - k * size)
            offsets, mirrored = (drawn[mine] for drawn in self._draws(count, rng))
            x = shifted(x, offsets)
            x[mirrored] = x[mirrored, :, :, ::-1]
            yield x, y

    def state_dict(self) -> dict[str, int]:
        """The loader's position, from which the draws follow."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: those of the loader."""
        self.loader.load_state_dict(state)

    def _draws(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Shifts (n, 2) and which images are mirrored (n,), for the next ``n`` images."""
        height, width = self._size
        reach = np.array([height // 8, width // 8])
        offsets = rng.integers(-reach, reach + 1, (n, 2))
        offsets[rng.random(n) < 0.5] = 0
        return offsets, rng.random(n) < 0.5 if self.flip else np.zeros(n, bool)


def shifted(x: Array, offsets: Array) -> Array:
    """Images (N, C, H, W) moved down and right by ``offsets`` (N, 2); zeros come in."""
    n, channels, height, width = x.shape
    dy, dx = np.abs(offsets).max(axis=0, initial=0)
    padded = np.zeros((n, channels, height + 2 * dy, width + 2 * dx), x.dtype)
    padded[:, :, dy : dy + height, dx : dx + width] = x
    rows = np.arange(height) + (dy - offsets[:, :1])
    columns = np.arange(width) + (dx - offsets[:, 1:])
    moved = padded[np.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))
