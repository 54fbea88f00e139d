"""AvgPooling1D."""

from __future__ import annotations

import numpy as np

from singanet.layers import AvgPooling1D
from singanet.testing import LayerCase


def by_loops(x, kernel, stride, pad):
    """Over the last axis, only positions on the sequence counting."""
    length = x.shape[-1]
    starts = range(-pad, length + pad - kernel + 1, stride)
    windows = [x[..., max(s, 0) : min(s + kernel, length)] for s in starts]
    return np.stack([window.sum(axis=-1) / window.shape[-1] for window in windows], axis=-1)


class TestAvgPooling1D(LayerCase):
    in_shapes = (3, 8)

    def make(self):
        return AvgPooling1D("pool")

    def expected(self, params, x):
        return by_loops(x, 3, 2, 1)


class TestAvgPooling1DOfSingasShape(LayerCase):
    in_shapes = (9,)

    def make(self):
        return AvgPooling1D("pool", kernel=4, stride=3, pad=2)

    def expected(self, params, x):
        return by_loops(x, 4, 3, 2)


def test_it_averages_whole_windows():
    # SINGA took a third of every second element.
    layer = AvgPooling1D("pool", 3, 2, border_mode="valid", input_sample_shape=(5,))
    _, y = LayerCase().run(_built(layer), np.array([[1.0, 2, 6, 4, 2]]), train=False)
    assert y.tolist() == [[3, 4]]


def _built(layer):
    layer.get_output_sample_shape()
    return layer


def test_shape_of_singas_own_test():
    layer = AvgPooling1D("pool", 3, 2, input_sample_shape=(224,))
    assert layer.get_output_sample_shape() == (112,)
