from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError
from singanet.layers import Concat, Weight
from singanet.testing import LayerCase


class TestWeight(LayerCase):
    def make(self):
        return Weight("token", (3, 2))

    def expected(self, params, x):
        return np.stack([params["weight"]] * len(x))


def test_a_token_begins_every_sequence():
    x = Input("x", (4, 2))
    net = FeedForwardNet(inputs=x, outputs=Concat("all", 1)(Weight("token", (1, 2))(x), x), seed=0)
    token = net["token"].params["weight"].value
    token[...] = 7
    given = np.ones((3, 4, 2), np.float32)
    found = net.forward(True, given)
    assert (found[:, 0] == 7).all()
    np.testing.assert_array_equal(found[:, 1:], given)
    (gradient,) = (g for item in net.backward(np.ones_like(found)) for g in item.grads)
    np.testing.assert_array_equal(gradient, np.full((1, 2), 3))


def test_shapes_are_whole_numbers():
    with pytest.raises(ArgumentError, match="extents"):
        Weight("token", (0,))
