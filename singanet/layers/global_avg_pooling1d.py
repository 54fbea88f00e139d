"""Global average pooling of sequences."""

from __future__ import annotations

from singanet.layers.global_pooling import GlobalAvgPooling


class GlobalAvgPooling1D(GlobalAvgPooling):
    """The mean of each channel over all positions: (C, L) → (C,)."""

    axes = "(channels, length)"
