"""GlobalMaxPooling2D."""

from __future__ import annotations

import numpy as np

from singanet.layers import GlobalMaxPooling2D
from singanet.testing import LayerCase


class TestGlobalMaxPooling2D(LayerCase):
    in_shapes = (3, 4, 5)

    def make(self):
        return GlobalMaxPooling2D("pool")

    def expected(self, params, x):
        return np.array([[channel.max() for channel in sample] for sample in x])


def test_of_equal_values_the_first_gets_the_gradient():
    layer = GlobalMaxPooling2D("pool", input_sample_shape=(1, 2, 2))
    x = np.array([[[[1.0, 5], [5, 5]]]], np.float32)
    ctx, y = LayerCase().run(layer, x, train=True)
    assert y.tolist() == [[5.0]]
    dx, _ = layer.backward(ctx, np.array([[7.0]], np.float32))
    assert dx.tolist() == [[[[0, 7], [0, 0]]]]


def test_an_infinite_gradient_stays_at_its_position():
    layer = GlobalMaxPooling2D("pool", input_sample_shape=(1, 1, 2))
    ctx, _ = LayerCase().run(layer, np.array([[[[1.0, 2]]]], np.float32), train=True)
    dx, _ = layer.backward(ctx, np.array([[np.inf]], np.float32))
    assert dx.tolist() == [[[[0, np.inf]]]]
