"""Multiply."""

from __future__ import annotations

import numpy as np

from singanet.layers import Activation, Dense, GlobalAvgPooling2D, Multiply, Reshape
from singanet.layers.input import Input
from singanet.net import FeedForwardNet
from singanet.testing import LayerCase, check_net_gradients


class TestMultiply(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Multiply("product")

    def expected(self, params, x):
        return np.prod(x, axis=0)


class TestMultiplySpread(LayerCase):
    in_shapes = [(4, 3, 2), (4, 1, 1)]

    def make(self):
        return Multiply("gate")

    def expected(self, params, x):
        return np.einsum("nchw,nc->nchw", x[0], x[1][:, :, 0, 0])


def test_a_zero_factor_is_no_special_case():
    layer = Multiply("product")
    layer.build([(2,), (2,)])
    x = [np.array([[0.0, 3.0]]), np.array([[5.0, 0.0]])]
    ctx, _ = LayerCase().run(layer, x, train=True)
    (da, db), _ = layer.backward(ctx, np.ones((1, 2)))
    assert da.tolist() == [[5, 0]]
    assert db.tolist() == [[0, 3]]


def test_a_squeeze_and_excitation_block_has_the_right_gradients(rng):
    image = Input("image", (3, 4, 4))
    squeezed = GlobalAvgPooling2D("squeeze")(image)
    gate = Activation("sigmoid", "sigmoid")(Dense("excite", 3)(squeezed))
    scaled = Multiply("gate")(image, Reshape("spread", (3, 1, 1))(gate))
    net = FeedForwardNet(inputs=image, outputs=scaled, seed=0)
    check_net_gradients(net, rng.standard_normal((2, 3, 4, 4)))
