"""Average pooling of sequences."""

from __future__ import annotations

from singanet.layers.avg_pooling2d import AvgPooling2D
from singanet.layers.pooling1d import Pooling1D


class AvgPooling1D(Pooling1D, AvgPooling2D):
    """The mean of each window over the positions that lie on the sequence.

    Sample shapes (C, L) → (C, L') and (L,) → (L',).
    """
