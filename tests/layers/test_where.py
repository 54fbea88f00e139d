"""Comparisons and choices."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from singanet.layers import Compare, Dense, Where
from singanet.testing import LayerCase, check_net_gradients


class TestWhere(LayerCase):
    in_shapes = [(3, 1), (3, 4), (1, 4)]

    def make(self):
        return Where("chosen")

    def draw(self, rng, batch):
        condition = rng.integers(0, 2, (batch, 3, 1)).astype(bool)
        return [condition, *(rng.standard_normal((batch, *s)) for s in self.in_shapes[1:])]

    def expected(self, params, x):
        return x[0] * x[1] + (1 - x[0]) * x[2]


class TestWhereOfANumber(TestWhere):
    in_shapes = [(1, 4), (3, 4)]

    def make(self):
        return Where("masked", b=-2.5)

    def draw(self, rng, batch):
        return [rng.integers(-1, 2, (batch, 1, 4)), rng.standard_normal((batch, 3, 4))]

    def expected(self, params, x):
        return x[0] ** 2 * x[1] - 2.5 * (1 - x[0] ** 2)


class TestCompare(LayerCase):
    in_shapes = [(3, 1), (1, 4)]

    def make(self):
        return Compare("later", ">")

    def expected(self, params, x):
        return np.sign(x[0] - x[1]) == 1


class TestCompareWithANumber(LayerCase):
    def make(self):
        return Compare("few", "<=", 0.25)

    def expected(self, params, x):
        return np.sign(x - 0.25) < 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    feed = {key: rng.standard_normal((4, 6)).astype(dtype) for key in "ab"}
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in feed.items()}
    wanted = torch.where(leaves["a"] >= leaves["b"], leaves["a"] * 2, leaves["b"])
    dy = rng.standard_normal((4, 6)).astype(dtype)
    wanted.backward(torch.tensor(dy))
    a, b = Input("a", (6,)), Input("b", (6,))
    net = FeedForwardNet(inputs=[a, b], outputs=(a >= b).where(a * 2, b), seed=0)
    net.as_type(dtype)
    np.testing.assert_array_equal(net.forward(False, feed), wanted.detach().numpy())
    found = net.gradients("where", ["a", "b"], feed, dys=dy)
    for key, leaf in leaves.items():
        np.testing.assert_array_equal(found[key], leaf.grad.numpy())


def test_what_decides_is_not_trained():
    """Nor are contexts kept for it."""
    x = Input("x", (3,))
    gate, value = Dense("gate", 2)(x), Dense("value", 2)(x)
    net = FeedForwardNet(inputs=x, outputs=(gate < 0.1).where(value, 0.0), seed=0)
    rows = np.random.default_rng(0).standard_normal((5, 3))
    y = net.forward(True, rows)
    trained = [name for item in net.backward(np.ones_like(y)) for name in item.names]
    assert trained == ["value/weight", "value/bias"]
    names = [node.name for node in net.nodes()]
    assert names == ["x", "gate", "value", "less", "where"]
    net["gate"].trainable = False
    check_net_gradients(net, rows)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    np.testing.assert_array_equal(again.forward(False, rows), net.forward(False, rows))


def test_a_mask_is_fed_as_booleans():
    seen, scores = Input("seen", (4,), "bool"), Input("scores", (4,))
    net = FeedForwardNet(inputs=[seen, scores], outputs=Where("masked", b=-1e9)(seen, scores))
    feed = {"seen": np.array([[True, False, True, True]]), "scores": np.ones((1, 4), np.float32)}
    assert net.forward(False, feed).tolist() == [[1.0, -1e9, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Compare("it", "=>"), UnknownNameError, "argument how"),
        (lambda: Compare("it", ">", "1"), ArgumentError, "argument value"),
        (lambda: Compare("it", ">").build((3,)), ShapeError, "2 inputs"),
        (lambda: Compare("it", ">", 1).build([(3,), (3,)]), ShapeError, "1 inputs"),
        (lambda: Where("it", 1.0, 2.0), ArgumentError, "not for both"),
        (lambda: Where("it", a="x"), ArgumentError, "argument a"),
        (lambda: Where("it").build([(3,), (3,)]), ShapeError, "3 inputs"),
        (lambda: Where("it", 0.0).build([(3,), (4,)]), ShapeError, "agree"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=f"layer 'it'.*{words}"):
        make()


def test_a_condition_of_floats_is_refused():
    x = Input("x", (2,))
    with pytest.raises(ArgumentError, match="input 0: expected whole numbers or booleans"):
        Where("it", b=0.0)(x * 2, x)
    y = Input("y", (2,))
    net = FeedForwardNet(inputs=[x, y], outputs=Where("it", b=0.0)(x, y))
    with pytest.raises(DataError, match="layer 'it', input 0: expected a condition"):
        net.forward(False, {"x": np.ones((1, 2), np.float32), "y": np.ones((1, 2))})
    with pytest.raises(ShapeError, match="inputs of one batch size"):
        net.forward(False, {"x": np.ones((1, 2), bool), "y": np.ones((3, 2))})
