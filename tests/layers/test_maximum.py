"""Maximum."""

from __future__ import annotations

import numpy as np

from singanet.layers import Maximum
from singanet.testing import LayerCase


class TestMaximum(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Maximum("max")

    def expected(self, params, x):
        return np.max(x, axis=0)


class TestMaximumSpread(LayerCase):
    in_shapes = [(2, 3), (2, 1)]

    def make(self):
        return Maximum("max")

    def expected(self, params, x):
        return np.where(x[0] > x[1], x[0], x[1])


def test_of_equal_inputs_the_first_gets_the_gradient():
    layer = Maximum("max")
    layer.build([(2,), (2,), (2,)])
    x = [np.array([[1.0, 4.0]]), np.array([[2.0, 4.0]]), np.array([[2.0, 3.0]])]
    ctx, y = LayerCase().run(layer, x, train=True)
    assert y.tolist() == [[2, 4]]
    dx, _ = layer.backward(ctx, np.array([[5.0, 6.0]]))
    assert [part.tolist() for part in dx] == [[[0, 6]], [[5, 0]], [[0, 0]]]
