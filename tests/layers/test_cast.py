"""Numbers of one type as those of another."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Cast, Dense, Embedding, TimeDistributed
from singanet.testing import LayerCase, check_net_gradients


class TestCastToIntegers(LayerCase):
    in_shapes = (3, 2)

    def make(self):
        return Cast("whole", "int32")

    def draw(self, rng, batch):
        return 5 * rng.standard_normal((batch, 3, 2))

    def expected(self, params, x):
        return np.sign(x) * np.floor(np.abs(x))


class TestCastToBooleans(TestCastToIntegers):
    def make(self):
        return Cast("there", "bool")

    def expected(self, params, x):
        return x != 0


class TestCastToFloats(LayerCase):
    def make(self):
        return Cast("floats")

    def expected(self, params, x):
        return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_integers_become_of_the_nets_type(dtype):
    whole = Input("whole", (2, 3), "uint8")
    y = TimeDistributed("each", Dense("fc", 2))(whole.astype("float") * 0.5)
    net = FeedForwardNet(inputs=whole, outputs=y, seed=0)
    net.as_type(dtype)
    x = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    weight, bias = net.param_values()
    for _ in range(3):
        found = net.forward(False, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 0.5 * x @ weight + bias, rtol=1e-5)
    check_net_gradients(net, x)


def test_floats_become_indices():
    x = Input("x", (2,))
    net = FeedForwardNet(inputs=x, outputs=Embedding("words", 3, 4)((x * 2.0).astype("int64")))
    table = net.param_values()[0]
    np.testing.assert_array_equal(net.forward(False, np.array([[0.9, 0.1]])), table[[[1, 0]]])
    again = FeedForwardNet.from_config(net.to_config())
    assert again.nodes()[2].layer.dtype == "int64"


def test_refusals():
    for dtype in ("float32", "complex64", "number", None, "<U3"):
        with pytest.raises(ArgumentError, match="layer 'it', argument dtype"):
            Cast("it", dtype)
    with pytest.raises(ShapeError, match="layer 'it': expected one input"):
        Cast("it").build([(2,), (2,)])
    with pytest.raises(ArgumentError, match="floats to compute with"):
        Dense("it", 2)(Input("x", (2,)).astype("int64"))
