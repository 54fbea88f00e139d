"""Global max pooling of images."""

from __future__ import annotations

from singanet.layers.global_pooling import GlobalMaxPooling


class GlobalMaxPooling2D(GlobalMaxPooling):
    """The largest value of each channel over all positions: (C, H, W) → (C,)."""

    axes = "(channels, height, width)"
