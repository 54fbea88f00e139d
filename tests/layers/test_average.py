"""Average."""

from __future__ import annotations

import numpy as np

from singanet.layers import Average
from singanet.testing import LayerCase


class TestAverage(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Average("mean")

    def expected(self, params, x):
        return np.mean(x, axis=0)


class TestAverageSpread(LayerCase):
    in_shapes = [(2, 3), (1, 3)]

    def make(self):
        return Average("mean")

    def expected(self, params, x):
        return (x[0] + x[1]) / 2
