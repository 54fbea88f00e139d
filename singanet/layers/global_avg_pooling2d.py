"""Global average pooling of images."""

from __future__ import annotations

from singanet.layers.global_pooling import GlobalAvgPooling


class GlobalAvgPooling2D(GlobalAvgPooling):
    """The mean of each channel over all positions: (C, H, W) → (C,)."""

    axes = "(channels, height, width)"
