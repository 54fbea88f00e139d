"""Global pooling of images and sequences."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import (
    GlobalAvgPooling1D,
    GlobalAvgPooling2D,
    GlobalAvgPooling3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
)
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


class TestGlobalAvgPooling1D(LayerCase):
    in_shapes = (3, 7)

    def make(self):
        return GlobalAvgPooling1D("pool")

    def expected(self, params, x):
        return np.einsum("ncl->nc", x) / 7


def test_refuses_an_image():
    with pytest.raises(ShapeError, match=r"'pool': expected .*\(channels, length\)"):
        GlobalAvgPooling1D("pool").build((3, 4, 4))


class TestGlobalMaxPooling1D(LayerCase):
    in_shapes = (3, 7)

    def make(self):
        return GlobalMaxPooling1D("pool")

    def expected(self, params, x):
        return np.array([[channel.max() for channel in sample] for sample in x])


class TestGlobalAvgPoolingKeepsAxes(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return GlobalAvgPooling2D("pool", keepdims=True)

    def expected(self, params, x):
        return x.mean(axis=(2, 3), keepdims=True)


class TestGlobalAvgPooling3D(LayerCase):
    in_shapes = (3, 2, 4, 3)

    def make(self):
        return GlobalAvgPooling3D("pool")

    def expected(self, params, x):
        return np.einsum("ncdhw->nc", x) / 24


class TestGlobalMaxPooling3D(LayerCase):
    in_shapes = (3, 2, 4, 3)

    def make(self):
        return GlobalMaxPooling3D("pool", keepdims=True)

    def expected(self, params, x):
        return x.max(axis=(2, 3, 4), keepdims=True)
