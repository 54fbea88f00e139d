"""Outputs of nets that are some of a layer's outputs."""

import itertools

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, functional, load_model
from singanet.errors import DataError
from singanet.layers import GRU, Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
SOME = [
    some for n in (1, 2, 3) for some in itertools.permutations(range(3), n) if some != (0, 1, 2)
]


def parts():
    x = Input("x", (6,))
    return x, functional.split(Dense("dense", 6)(x), 3, axis=1)


@pytest.mark.parametrize("some", SOME)
def test_a_net_has_the_parts_that_are_its_outputs(some, tmp_path):
    x, each = parts()
    net = FeedForwardNet(inputs=[x], outputs=[each[k] for k in some], seed=1)
    weight, bias = (param.value for param in net.params())
    whole = X @ weight + bias
    net.save_model(tmp_path / "net.singanet")
    for made in (net, load_model(tmp_path / "net.singanet")):
        found = made.forward(False, X)
        assert isinstance(found, dict) is (len(some) > 1)
        found = [*found.values()] if len(some) > 1 else [found]
        for k, y in zip(some, found, strict=True):
            np.testing.assert_allclose(y, whole[:, 2 * k : 2 * k + 2], rtol=1e-5, atol=1e-6)


def test_gradients_of_a_part_are_those_of_the_others_zero():
    x, each = parts()
    net = FeedForwardNet(inputs=[x], outputs=[each[1]], loss=SquaredError(), seed=1)
    net.forward(True, X)
    dy = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)
    grads = {
        name: g for names, _, of in net.backward(dy) for name, g in zip(names, of, strict=True)
    }
    wanted = np.zeros((6, 6), np.float32)
    wanted[:, 2:4] = X.T @ dy
    np.testing.assert_allclose(grads["dense/weight"], wanted, rtol=1e-5, atol=1e-6)


def test_the_last_state_of_a_recurrent_layer_learns():
    x = Input("x", (5, 4))
    _, state = GRU("gru", 3, return_state=True)(x)
    net = FeedForwardNet(inputs=[x], outputs=[state], loss=SquaredError(), seed=0)
    texts = np.random.default_rng(2).standard_normal((8, 5, 4)).astype(np.float32)
    net.compile("adam")
    first = net.evaluate(texts, np.ones((8, 1, 3), np.float32))[0]
    net.fit(texts, np.ones((8, 1, 3), np.float32), epochs=5, verbose=False)
    assert net.evaluate(texts, np.ones((8, 1, 3), np.float32))[0] < first


def test_parts_have_losses_of_their_own():
    x, each = parts()
    losses = MultiLoss({"parts_2": SquaredError(), "parts_0": SoftmaxCrossEntropy()})
    net = FeedForwardNet(inputs=[x], outputs=[each[2], each[0]], loss=losses, seed=0)
    y = {"parts_2": X[:, :2], "parts_0": np.array([0, 1, 1, 0])}
    net.compile("adam")
    assert np.isfinite(net.fit(X, y, epochs=2, verbose=False)["loss"]).all()


def test_an_output_of_a_nested_net_is_that_of_its_part():
    x, each = parts()
    inner = FeedForwardNet(inputs=[x], outputs=each, name="inner")
    net = FeedForwardNet(inputs=[x := Input("y", (6,))], outputs=[inner(x)[1]], seed=1)
    weight, bias = (param.value for param in net.params())
    np.testing.assert_allclose(
        net.forward(False, X), (X @ weight + bias)[:, 2:4], rtol=1e-5, atol=1e-6
    )


def test_a_loss_refuses_the_list_of_all_parts():
    x, each = parts()
    net = FeedForwardNet(inputs=[x], outputs=each, loss=SquaredError(), seed=0)
    assert [y.shape for y in net.predict(X)] == [(4, 2)] * 3
    net.compile("adam")
    with pytest.raises(DataError, match=r"a list of 3, all outputs of one layer; .*Dummy"):
        net.fit(X, X, epochs=1, verbose=False)
