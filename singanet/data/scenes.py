"""Digits on noise, and which of them each pixel belongs to: segmentation of shipped images."""

from __future__ import annotations

import numpy as np

from singanet.data.dataset import Dataset
from singanet.data.digits import digits
from singanet.types import Array

SIDE, CELL, DIGIT = 32, 16, 8
TOGETHER = 3
INK = 0.25
"""From which value on a pixel of a digit belongs to it."""


def scenes(seed: int = 0) -> Dataset:
    """961 + 236 scenes (1, 32, 32) with a class for each pixel (32, 32): 0, or the digit plus 1.

    Three of `digits`, each in a quarter of its own, on even noise up to 0.5. Every digit is in two
    scenes, those for testing in none to train on.
    """
    source, rng = digits(), np.random.default_rng(seed)
    x_train, y_train = _pasted(source.x_train, source.y_train, rng)
    x_test, y_test = _pasted(source.x_test, source.y_test, rng)
    return Dataset("scenes", x_train, y_train, x_test, y_test, source.num_classes + 1)


def _pasted(images: Array, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Scenes (N, 1, 32, 32) and the classes of their pixels (N, 32, 32)."""
    twice = np.concatenate([rng.permutation(len(images)) for _ in range(2)])
    groups = twice[: len(twice) // TOGETHER * TOGETHER].reshape(-1, TOGETHER)
    x = 0.5 * rng.random((len(groups), 1, SIDE, SIDE), np.float32)
    y = np.zeros((len(groups), SIDE, SIDE), np.int32)
    cells = rng.permuted(np.tile(np.arange(4), (len(groups), 1)), axis=1)
    corners = rng.integers(0, CELL - DIGIT + 1, (len(groups), TOGETHER, 2))
    for scene, group in enumerate(groups):
        for k, number in enumerate(group):
            top, left = CELL * np.array(divmod(cells[scene, k], 2)) + corners[scene, k]
            place = (scene, slice(top, top + DIGIT), slice(left, left + DIGIT))
            digit = images[number, 0]
            x[:, 0][place] = np.maximum(x[:, 0][place], digit)
            y[place] = np.where(digit >= INK, labels[number] + 1, 0)
    return x, y
