"""Max pooling of sequences."""

from __future__ import annotations

from singanet.layers.max_pooling2d import MaxPooling2D
from singanet.layers.pooling1d import Pooling1D


class MaxPooling1D(Pooling1D, MaxPooling2D):
    """The largest value of each window; padding never wins, and of equal values the first does.

    Sample shapes (C, L) → (C, L') and (L,) → (L',).
    """
