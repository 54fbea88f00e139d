"""Elements picked along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import Dense, Embedding, Gather
from singanet.testing import LayerCase


class TestGather(LayerCase):
    in_shapes = (5, 3)

    def make(self):
        return Gather("picked", 1, [4, 0, 4, -2])

    def expected(self, params, x):
        return np.stack([x[:, 4], x[:, 0], x[:, 4], x[:, 3]], axis=1)


class TestGatherOfTheLastAxis(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Gather("picked", -1, (2,))

    def expected(self, params, x):
        return x[..., 2:3]


class TestGatherByAnInput(LayerCase):
    in_shapes = [(5, 3), (4, 1)]

    def make(self):
        return Gather("picked")

    def draw(self, rng, batch):
        return [rng.standard_normal((batch, 5, 3)), rng.integers(-5, 5, (batch, 4, 1))]

    def expected(self, params, x):
        rows = [[sample[k] for k in own[:, 0]] for sample, own in zip(*x, strict=True)]
        return np.array(rows).reshape(-1, 4, 3)


class TestGatherOfSpreadSamples(TestGatherByAnInput):
    in_shapes = [(1, 5), (3, 2)]

    def make(self):
        return Gather("picked", 2)

    def draw(self, rng, batch):
        return [rng.standard_normal((batch, 1, 5)), rng.integers(-5, 5, (batch, 3, 2)).astype("i4")]

    def expected(self, params, x):
        return np.take_along_axis(np.repeat(x[0], 3, axis=1), x[1], 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((4, 6, 3)).astype(dtype), rng.integers(0, 6, (4, 9, 3))
    dy = rng.standard_normal((4, 9, 3)).astype(dtype)
    leaf = torch.tensor(x, requires_grad=True)
    y = torch.gather(leaf, 1, torch.tensor(index))
    y.backward(torch.tensor(dy))
    a, b = Input("a", (6, 3)), Input("b", (9, 3), "int64")
    net = FeedForwardNet(inputs=[a, b], outputs=Gather("it")(a, b))
    net.as_type(dtype)
    feed = {"a": x, "b": index}
    np.testing.assert_array_equal(net.forward(False, feed), y.detach().numpy())
    found = net.gradients("it", "a", feed, dys=dy)["a"]
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-5)


def test_symbols_are_indexed_by_lists():
    a = Input("a", (5, 3))
    net = FeedForwardNet(inputs=a, outputs=Dense("fc", 2)(a[:, [4, 0, 4], 1]), seed=0)
    x = np.random.default_rng(0).random((2, 5, 3), np.float32)
    weight, bias = net.param_values()
    wanted = x[:, [4, 0, 4], 1] @ weight + bias
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-6)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    np.testing.assert_array_equal(again.forward(False, x), net.forward(False, x))


def test_picked_integers_stay_integers():
    words, big = Input("words", (3,), "int64"), 2**24 + 1
    y = Embedding("table", big + 1, 1, W_specs={"init": "constant", "value": 0.5})(words[:, [2]])
    net = FeedForwardNet(inputs=words, outputs=y, seed=0)
    assert net.forward(False, np.array([[0, 1, big]])).tolist() == [[[0.5]]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Gather("it", 0), ArgumentError, "axis of the sample"),
        (lambda: Gather("it", 1, []), ArgumentError, "whole numbers"),
        (lambda: Gather("it", 1, [0.5]), ArgumentError, "whole numbers"),
        (lambda: Gather("it", 1, [3]).build((3, 2)), DataError, "from 0 to 2"),
        (lambda: Gather("it", 3, [0]).build((3, 2)), ShapeError, "an axis 3"),
        (lambda: Gather("it", 1).build((3, 2)), ShapeError, "indices with the same number"),
        (
            lambda: Gather("it", 1).build([(3, 2), (4,)]),
            ShapeError,
            "indices with the same number",
        ),
        (lambda: Gather("it", 1).build([(3, 2), (4, 3)]), ShapeError, "of equal extent or 1"),
        (lambda: Gather("it", 1, [0]).build([(3,), (3,)]), ShapeError, "an axis 1"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=f"layer 'it'.*{words}"):
        make()


@pytest.mark.parametrize("bad", [5, -6])
def test_indices_beyond_the_axis_are_refused_also_in_a_program(bad):
    a, b = Input("a", (5,)), Input("b", (1,), "int64")
    net = FeedForwardNet(inputs=[a, b], outputs=Gather("it")(a, b))
    feed = {"a": np.ones((2, 5)), "b": np.array([[0], [4]])}
    for _ in range(3):
        net.forward(False, feed)
    with pytest.raises(DataError, match=r"layer 'it': expected indices from 0 to 4"):
        net.forward(False, {**feed, "b": np.array([[0], [bad]])})
