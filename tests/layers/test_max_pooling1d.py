"""MaxPooling1D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import MaxPooling1D
from singanet.testing import LayerCase


def by_loops(x, kernel, stride, pad):
    """Over the last axis, only positions on the sequence counting."""
    length = x.shape[-1]
    starts = range(-pad, length + pad - kernel + 1, stride)
    windows = [x[..., max(s, 0) : min(s + kernel, length)] for s in starts]
    return np.stack([window.max(axis=-1) for window in windows], axis=-1)


class TestMaxPooling1D(LayerCase):
    in_shapes = (3, 8)

    def make(self):
        return MaxPooling1D("pool")

    def expected(self, params, x):
        return by_loops(x, 3, 2, 1)

    def draw(self, rng, batch):
        # All below zero, so that a padding of zeros would win.
        return super().draw(rng, batch) - 10


class TestMaxPooling1DOfSingasShape(LayerCase):
    in_shapes = (9,)

    def make(self):
        return MaxPooling1D("pool", kernel=4, stride=3, pad=2)

    def expected(self, params, x):
        return by_loops(x, 4, 3, 2)


def test_shape_of_singas_own_test():
    layer = MaxPooling1D("pool", 3, 2, input_sample_shape=(224,))
    assert layer.get_output_sample_shape() == (112,)


def test_refuses_bad_arguments_and_shapes():
    with pytest.raises(ArgumentError, match=r"'pool', argument kernel: expected an int"):
        MaxPooling1D("pool", (2, 2))
    with pytest.raises(ShapeError, match=r"'pool': expected .*\(channels, length\)"):
        MaxPooling1D("pool").build((2, 3, 4))
    with pytest.raises(ShapeError, match=r"'pool': expected sequences at least as long"):
        MaxPooling1D("pool", 5, border_mode="valid").build((4,))
    with pytest.raises(ShapeError, match=r"'pool': expected padding smaller than the kernel"):
        MaxPooling1D("pool", 2, pad=2).build((4,))
