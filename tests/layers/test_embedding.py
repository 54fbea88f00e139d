"""Embedding, and row-sparse gradients on their way through a net."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import Concat, Dense, Dummy, Embedding, Flatten, Input, Merge, Slice
from singanet.loss import SquaredError
from singanet.net import FeedForwardNet
from singanet.optimizer import Adam, AdamW
from singanet.testing import LayerCase, check_net_gradients
from singanet.types import RowSparse


class TestEmbedding(LayerCase):
    in_shapes = (4,)

    def make(self):
        return Embedding("words", 7, 3)

    def draw(self, rng, batch):
        return rng.integers(0, 7, (batch, *self.in_shapes))

    def expected(self, params, x):
        one_hot = (x[..., None] == np.arange(7)).astype(float)
        return one_hot @ params["weight"]


class TestEmbeddingOfOneIndexASample(TestEmbedding):
    in_shapes = ()


class TestEmbeddingOfAnImageOfBytes(TestEmbedding):
    in_shapes = (2, 3)

    def draw(self, rng, batch):
        return super().draw(rng, batch).astype(np.uint8)


class TestEmbeddingOfAllRows(TestEmbedding):
    def make(self):
        return Embedding("words", 7, 3, sparse=False)


class TestEmbeddingWithPadding(TestEmbedding):
    """Numerical derivatives of the padded row are not zero, so none is looked up here."""

    def make(self):
        return Embedding("words", 7, 3, padding_index=2)

    def draw(self, rng, batch):
        return rng.choice([0, 1, 3, 4, 5, 6], (batch, *self.in_shapes))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("uses", [1, 2])
def test_rows_that_rest_move_as_in_pytorch_unless_gradients_are_sparse(uses, recorded, rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    ids = Input("ids", (4,), dtype="int64")
    table = Embedding("words", 9, 3, sparse=False)
    y = table(ids)
    if uses == 2:
        y = Merge("sum")(y, Embedding("again", 9, 3, W_specs=table.params["weight"])(ids))
    net = FeedForwardNet(SquaredError(), inputs=ids, outputs=Flatten("flat")(y), seed=0)
    net.programs.enabled = recorded
    theirs = torch.nn.Parameter(torch.tensor(net.param_values()[0].copy()))
    optimizer = AdamW(lr=0.05, weight_decay=0.1, epsilon_after_correction=True)
    peer = torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.1)
    for _ in range(20):
        x = rng.integers(0, 9, (2, 4))
        target = rng.standard_normal((2, 12), np.float32)
        net.step(x, target, optimizer)
        peer.zero_grad()
        out = uses * theirs[torch.tensor(x)].reshape(2, 12)
        (0.5 * (out - torch.tensor(target)) ** 2).sum(1).mean().backward()
        peer.step()
    np.testing.assert_allclose(net.param_values()[0], theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recorded", [False, True])
def test_padding_trains_as_in_pytorch(recorded, rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    net = FeedForwardNet(SquaredError(), seed=0)
    net.add(Embedding("words", 6, 3, padding_index=4, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    table = net.param_values()[0]
    assert not table[4].any()
    assert table[[0, 1, 2, 3, 5]].all()
    theirs = torch.nn.Embedding(6, 3, padding_idx=4)
    assert not theirs.weight[4].any()
    with torch.no_grad():
        theirs.weight[...] = torch.tensor(table)
    ours, peer = Adam(lr=0.1), torch.optim.Adam(theirs.parameters(), lr=0.1)
    for _ in range(4):
        # Every row, as PyTorch's rule goes on moving those that a batch leaves out.
        ids = rng.permuted(np.array([[0, 1, 2, 4, 4], [3, 5, 4, 0, 1]]), axis=1)
        y = rng.standard_normal((2, 15)).astype(np.float32)
        if recorded:
            net.step(ids, y, ours)
        else:
            dy = (net.forward(True, ids) - y) / 2
            for names, values, grads in net.backward(dy):
                ours.update(names, values, grads)
        peer.zero_grad()
        (((theirs(torch.tensor(ids)).reshape(2, 15) - torch.tensor(y)) ** 2).sum() / 4).backward()
        peer.step()
        assert not table[4].any()
        np.testing.assert_allclose(table, theirs.weight.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("index", [-1, 7, 1.0, "0"])
def test_refuses_a_padding_index_that_is_no_row(index):
    with pytest.raises(ArgumentError, match="'words', argument padding_index: expected an int"):
        Embedding("words", 7, 3, padding_index=index)


def test_a_shared_table_is_left_as_it_is():
    words = Embedding("words", 7, 3, W_specs={"init": "constant", "value": 1.0})
    words.build((4,))
    padded = Embedding("padded", 7, 3, W_specs=words.params["weight"], padding_index=2)
    padded.build((4,))
    assert (words.params["weight"].value == 1).all()


def only(items):
    """The gradients of a whole walk by name; a name yielded twice is an error."""
    grads = {}
    for names, _, values in items:
        for name, value in zip(names, values, strict=True):
            assert name not in grads
            grads[name] = value
    return grads


def test_the_gradient_holds_each_used_row_once_in_order():
    net = FeedForwardNet(seed=0)
    net.add(Embedding("words", 1_000_000, 2, input_sample_shape=(3,)))
    net.forward(True, np.array([[9, 2, 9], [2, 9, 999_999]]))
    dy = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    grad = only(net.backward(dy))["words/weight"]
    assert isinstance(grad, RowSparse)
    np.testing.assert_array_equal(grad.indices, [2, 9, 999_999])
    np.testing.assert_array_equal(
        grad.rows, [dy[0, 1] + dy[1, 0], dy[0, 0] + dy[0, 2] + dy[1, 1], dy[1, 2]]
    )
    assert grad.nbytes == 3 * (8 + 2 * 4)


def test_equal_indices_are_added_in_the_order_in_which_they_stand():
    # (1e8 + 1) - 1e8 is 0 in float32, any other order of the three gives 1.
    net = FeedForwardNet(seed=0)
    net.add(Embedding("words", 5, 1, input_sample_shape=(3,)))
    net.forward(True, np.array([[4, 4, 4]]))
    dy = np.array([[[1e8], [1], [-1e8]]], np.float32)
    assert only(net.backward(dy))["words/weight"].rows.item() == 0.0


@pytest.mark.parametrize("bad", [7, -1, 2**40])
def test_an_index_out_of_range_is_named_with_its_position(bad):
    net = FeedForwardNet(seed=0)
    net.add(Embedding("words", 7, 3, input_sample_shape=(2, 2)))
    x = np.zeros((3, 2, 2), np.int64)
    x[1, 0, 1] = bad
    with pytest.raises(
        DataError,
        match=rf"layer 'words': expected indices from 0 to 6 \(input_dim=7\);"
        rf" received the index {bad} at position \(1, 0, 1\)",
    ):
        net.forward(True, x)


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_indices_that_are_no_integers_are_refused(dtype):
    net = FeedForwardNet(seed=0)
    net.add(Embedding("words", 7, 3, input_sample_shape=(2,)))
    with pytest.raises(DataError, match=r"'words': expected integer indices; received .* type"):
        net.forward(False, np.ones((1, 2), dtype))


@pytest.mark.parametrize(("vocabulary", "size"), [(0, 3), (7, 0), (7.0, 3), ("7", 3)])
def test_refuses_bad_sizes(vocabulary, size):
    with pytest.raises(ArgumentError, match=r"'words', argument .*: expected an int of at least 1"):
        Embedding("words", vocabulary, size)


def test_refuses_several_inputs():
    with pytest.raises(ShapeError, match=r"layer 'words': expected one input"):
        Embedding("words", 7, 3).build([(2,), (2,)])


def tied(use_twice=False):
    """Two tokens a sample → the scores of all words, with one table on both sides."""
    net = FeedForwardNet(seed=1)
    words = Embedding("words", 6, 3, input_sample_shape=(2,))
    words.get_output_sample_shape()
    net.add(words)
    net.add(Flatten("flat"))
    net.add(Dense("middle", 3))
    net.add(Dense("scores", 6, W_specs=words.params["weight"], W_transpose=True))
    return net


def test_a_table_tied_to_the_output_has_one_dense_gradient():
    net = tied()
    x = np.array([[1, 5], [5, 0]])
    check_net_gradients(net, x)
    y = net.forward(True, x)
    items = [(item.layer, list(item.names)) for item in net.backward(np.ones_like(y))]
    assert items == [
        ("scores", ["scores/bias"]),
        ("middle", ["middle/weight", "middle/bias"]),
        ("flat", []),
        ("words", ["words/weight"]),
    ]
    y = net.forward(True, x)
    assert only(net.backward(np.ones_like(y)))["words/weight"].shape == (6, 3)


def twice():
    """One table read by two inputs."""
    words = Embedding("words", 9, 2)
    left, right = Input("left", (3,)), Input("right", (3,))
    total = Merge("sum")(words(left), words(right))
    return FeedForwardNet(inputs=[left, right], outputs=total, seed=1)


def test_a_table_used_twice_keeps_a_sparse_gradient():
    net = twice()
    feed = {"left": np.array([[1, 2, 1]]), "right": np.array([[8, 1, 0]])}
    check_net_gradients(net, feed)
    net.forward(True, feed)
    dy = np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2)
    grad = only(net.backward(dy))["words/weight"]
    assert isinstance(grad, RowSparse)
    np.testing.assert_array_equal(grad.indices, [0, 1, 2, 8])
    a, b, c = dy[0]
    np.testing.assert_array_equal(grad.rows, [c, a + c + b, b, a])


def test_integers_pass_an_input_and_layers_that_only_move_them():
    # 2²⁴ + 1 has no float32.
    big = 2**24 + 1
    tokens = Input("tokens", (2, 2))
    flat = Flatten("flat")(tokens)
    first, second = Slice("cut", 1, [1])(flat)
    both = Concat("join", 1)(second, first)
    words = Embedding("words", big + 1, 1, W_specs={"init": "constant", "value": 0.0})
    net = FeedForwardNet(inputs=tokens, outputs=words(both), seed=0)
    x = np.array([[[big, 0], [0, 0]]])
    net.forward(True, x)
    grad = only(net.backward(np.ones((1, 4, 1), np.float32)))["words/weight"]
    np.testing.assert_array_equal(grad.indices, [0, big])


def test_integers_that_feed_other_layers_too_are_converted_and_refused():
    x = Input("x", (2,))
    words = Flatten("flat")(Embedding("words", 7, 3)(x))
    net = FeedForwardNet(inputs=x, outputs=Concat("join", 1)(words, Dense("fc", 2)(x)), seed=0)
    with pytest.raises(DataError, match="an input that no other kind of layer reads"):
        net.forward(False, np.ones((1, 2), np.int64))


def test_no_gradient_reaches_the_indices():
    net = FeedForwardNet(seed=0)
    net.add(Dummy("tokens", input_sample_shape=(2, 2)))
    net.add(Flatten("flat"))
    net.add(Embedding("words", 7, 3))
    net.forward(True, np.zeros((1, 2, 2), np.int64))
    items = list(net.backward(np.ones((1, 4, 3), np.float32), output=["tokens", "words"]))
    assert items[-1].output_grads["tokens"] is None
    assert items[-1].output_grads["words"].shape == (1, 4, 3)


def test_equals_pytorch(rng):
    torch = pytest.importorskip("torch")
    layer = Embedding("words", 50, 8, input_sample_shape=(20,))
    net = FeedForwardNet()
    net.add(layer)
    peer = torch.nn.Embedding(50, 8)
    with torch.no_grad():
        peer.weight[:] = torch.from_numpy(net.param_values()[0])
    x = rng.integers(0, 50, (16, 20))
    dy = rng.standard_normal((16, 20, 8)).astype(np.float32)
    y = peer(torch.from_numpy(x))
    y.backward(torch.from_numpy(dy))
    np.testing.assert_array_equal(net.forward(True, x), y.detach().numpy())
    grad = only(net.backward(dy))["words/weight"]
    dense = np.zeros((50, 8), np.float32)
    dense[grad.indices] = grad.rows
    np.testing.assert_allclose(dense, peer.weight.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_indices_in_the_other_byte_order():
    net = FeedForwardNet([Embedding("table", 5, 2, input_sample_shape=(3,))], seed=0)
    x = np.array([[1, 4, 0]])
    np.testing.assert_array_equal(net.predict(x.astype(x.dtype.newbyteorder("S"))), net.predict(x))
