"""GlobalMaxPooling1D."""

from __future__ import annotations

import numpy as np

from singanet.layers import GlobalMaxPooling1D
from singanet.testing import LayerCase


class TestGlobalMaxPooling1D(LayerCase):
    in_shapes = (3, 7)

    def make(self):
        return GlobalMaxPooling1D("pool")

    def expected(self, params, x):
        return np.array([[channel.max() for channel in sample] for sample in x])
