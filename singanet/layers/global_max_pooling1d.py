"""Global max pooling of sequences."""

from __future__ import annotations

from singanet.layers.global_pooling import GlobalMaxPooling


class GlobalMaxPooling1D(GlobalMaxPooling):
    """The largest value of each channel over all positions: (C, L) → (C,)."""

    axes = "(channels, length)"
