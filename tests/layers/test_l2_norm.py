"""L2Norm."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Dummy, L2Norm
from singanet.net import FeedForwardNet
from singanet.testing import LayerCase


class TestL2Norm(LayerCase):
    in_shapes = (5,)

    def make(self):
        return L2Norm("unit")

    def expected(self, params, x):
        return np.stack([row / np.sqrt(np.dot(row, row) + 1e-8) for row in x])


class TestL2NormOfSequences(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return L2Norm("unit", epsilon=0.3)

    def expected(self, params, x):
        return x / np.sqrt(np.einsum("nld,nld->nl", x, x) + 0.3)[..., None]


def test_zero_vectors_stay_zero():
    layer = L2Norm("unit", input_shape=(3,))
    ctx, y = LayerCase().run(layer, np.zeros((1, 3)), train=True)
    assert y.tolist() == [[0, 0, 0]]
    dx, _ = layer.backward(ctx, np.array([[1.0, 0, 0]]))
    np.testing.assert_allclose(dx, [[1e4, 0, 0]])


def test_a_net_takes_it_and_backward_leaves_the_output_alone():
    # Both failed in SINGA.
    net = FeedForwardNet(seed=0)
    net.add(Dummy("x", input_sample_shape=(2,)))
    net.add(L2Norm("unit"))
    y = net.forward(True, np.array([[3.0, 4.0]]))
    before = y.copy()
    list(net.backward(np.ones((1, 2)), output="x"))
    np.testing.assert_array_equal(y, before)
    np.testing.assert_allclose(y, [[0.6, 0.8]], rtol=1e-6)


def test_refuses_samples_without_an_axis_and_a_bad_epsilon():
    with pytest.raises(ShapeError, match=r"layer 'unit': expected samples of at least one axis"):
        L2Norm("unit").build(())
    with pytest.raises(ArgumentError, match=r"'unit', argument epsilon"):
        L2Norm("unit", epsilon=0)
