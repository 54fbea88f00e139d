"""GlobalAvgPooling2D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import GlobalAvgPooling2D
from singanet.testing import LayerCase


class TestGlobalAvgPooling2D(LayerCase):
    in_shapes = (3, 4, 5)

    def make(self):
        return GlobalAvgPooling2D("pool")

    def expected(self, params, x):
        return np.einsum("nchw->nc", x) / 20


class TestGlobalAvgPoolingOfOnePixel(TestGlobalAvgPooling2D):
    in_shapes = (3, 1, 1)

    def expected(self, params, x):
        return x[:, :, 0, 0]


def test_float32_stays_exact_over_many_positions():
    layer = GlobalAvgPooling2D("pool", input_sample_shape=(1, 1000, 1000))
    x = np.full((1, 1, 1000, 1000), 0.1, np.float32)
    _, y = LayerCase().run(layer, x, train=False)
    assert y.item() == pytest.approx(np.float32(0.1), rel=1e-6)


@pytest.mark.parametrize("shape", [(3,), (3, 4), [(3, 4, 4), (3, 4, 4)]])
def test_refuses_what_is_no_image(shape):
    with pytest.raises(ShapeError, match=r"layer 'pool': expected .*\(channels, height, width\)"):
        GlobalAvgPooling2D("pool").build(shape)


def test_refuses_images_without_positions():
    with pytest.raises(ShapeError, match=r"at least one position.*\(3, 0, 4\)"):
        GlobalAvgPooling2D("pool").build((3, 0, 4))
