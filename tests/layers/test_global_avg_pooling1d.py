"""GlobalAvgPooling1D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import GlobalAvgPooling1D
from singanet.testing import LayerCase


class TestGlobalAvgPooling1D(LayerCase):
    in_shapes = (3, 7)

    def make(self):
        return GlobalAvgPooling1D("pool")

    def expected(self, params, x):
        return np.einsum("ncl->nc", x) / 7


def test_refuses_an_image():
    with pytest.raises(ShapeError, match=r"'pool': expected .*\(channels, length\)"):
        GlobalAvgPooling1D("pool").build((3, 4, 4))
