"""Embedding and its row-sparse gradients, Cache; positions, ClassToken and Weight."""

import math
from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import (
    Cache,
    ClassToken,
    Concat,
    Dense,
    Dummy,
    Embedding,
    Flatten,
    Input,
    Merge,
    PositionEmbedding,
    Positions,
    SinusoidalPosition,
    Slice,
    Weight,
)
from singanet.loss import SquaredError
from singanet.net import FeedForwardNet
from singanet.optimizer import Adam, AdamW
from singanet.testing import check_net_gradients
from singanet.types import RowSparse
from tests.kit.layers import beside_torch, built, case, cases, expect_refused, refuses


def embedding(shape, rows=range(7), kind=np.int64, **given):
    """Rows of a table, by a product with rows of 0 and 1."""
    return case(lambda: Embedding("words", 7, 3, **given), shape,
                lambda p, x: (x[..., None] == np.arange(7)).astype(float) @ p["weight"],
                lambda rng, shape: rng.choice(rows, shape).astype(kind))  # fmt: skip


def sines(p, x):
    y = x.copy()
    for t, i in np.ndindex(x.shape[1:]):
        angle = t / 10000 ** ((i - i % 2) / x.shape[2])
        y[:, t, i] += math.cos(angle) if i % 2 else math.sin(angle)
    return y


def sines_before_cosines(p, x):
    size = x.shape[2]
    return x + sines(p, 0 * x)[..., [*range(0, size, 2), *range(1, size, 2)]]


def counted(p, x):
    y = np.ones_like(x)
    for n, row in enumerate(x):
        there = [t for t, index in enumerate(row) if index != 1]
        y[n, there] = 2 + np.arange(len(there))
    return y


def tokens(p, x):
    return np.stack([np.vstack([p["weight"], sample]) for sample in x])


CASES = {
    "Embedding": embedding((4,)),
    "Embedding of one index": embedding(()),
    "Embedding of bytes": embedding((2, 3), kind=np.uint8),
    "Embedding of all rows": embedding((4,), sparse=False),
    # Numerical derivatives of the padded row are not zero, so none is looked up here.
    "Embedding with padding": embedding((4,), [0, 1, 3, 4, 5, 6], padding_index=2),
    "PositionEmbedding": case(lambda: PositionEmbedding("where"), (4, 3),
                              lambda p, x: x + p["weight"]),
    "PositionEmbedding, longer": case(lambda: PositionEmbedding("where", 7), (4, 3),
                                      lambda p, x: x + p["weight"][:4]),
    "PositionEmbedding from row 2": case(lambda: PositionEmbedding("where", 5, first=2), (4, 3),
                                         lambda p, x: x + p["weight"][2:6]),
    "Positions": case(lambda: Positions("where", 1), (6,), counted,
                      lambda rng, shape: rng.choice([0, 1, 1, 2, 3], shape)),
    "SinusoidalPosition": case(lambda: SinusoidalPosition("where"), (6, 5), sines),
    "SinusoidalPosition in halves": case(
        lambda: SinusoidalPosition("where", halves=True), (6, 5), sines_before_cosines
    ),
    "ClassToken": case(lambda: ClassToken("token"), (4, 3), tokens),
    "ClassTokens": case(lambda: ClassToken("tokens", 3), (4, 3), tokens),
    "Weight": case(lambda: Weight("token", (3, 2)), (4,),
                   lambda p, x: np.stack([p["weight"]] * len(x))),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


# -- peers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_token_agrees_with_one_expanded_in_pytorch(dtype):
    torch = pytest.importorskip("torch")
    beside_torch(lambda: ClassToken("tokens", 3), (4, 3),
                 lambda f, x, p: torch.cat([p["weight"].expand(len(x), 3, 3), x], dim=1),
                 dtype, batch=5)  # fmt: skip


def test_rows_and_their_gradients_equal_pytorch(rng):
    torch = pytest.importorskip("torch")
    net = FeedForwardNet([Embedding("words", 50, 8, input_sample_shape=(20,))], seed=0)
    table = torch.tensor(net.param_values()[0], requires_grad=True)
    x, dy = rng.integers(0, 50, (16, 20)), rng.standard_normal((16, 20, 8)).astype(np.float32)
    y = torch.nn.functional.embedding(torch.tensor(x), table)
    y.backward(torch.tensor(dy))
    np.testing.assert_array_equal(net.forward(True, x), y.detach().numpy())
    grad, dense = only(net.backward(dy))["words/weight"], np.zeros((50, 8), np.float32)
    dense[grad.indices] = grad.rows
    np.testing.assert_allclose(dense, table.grad.numpy(), rtol=1e-5, atol=1e-5)


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
    layers = [Embedding("words", 6, 3, padding_index=4, input_sample_shape=(5,)), Flatten("flat")]
    net = FeedForwardNet(layers, loss=SquaredError(), seed=0)
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


def test_a_shared_table_is_left_as_it_is():
    words = built(Embedding("words", 7, 3, W_specs={"init": "constant", "value": 1.0}), (4,))
    built(Embedding("padded", 7, 3, W_specs=words.params["weight"], padding_index=2), (4,))
    assert (words.params["weight"].value == 1).all()


def only(items):
    """The gradients of a whole walk by name; a name yielded twice is an error."""
    grads = {}
    for names, _, values in items:
        for name, value in zip(names, values, strict=True):
            assert name not in grads
            grads[name] = value
    return grads


def gradient_of(rows, ids, dy):
    net = FeedForwardNet([Embedding("words", rows, dy.shape[-1], input_sample_shape=(3,))], seed=0)
    net.forward(True, np.array(ids))
    return only(net.backward(dy))["words/weight"]


def test_the_gradient_holds_each_used_row_once_in_order():
    dy = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    grad = gradient_of(1_000_000, [[9, 2, 9], [2, 9, 999_999]], dy)
    assert isinstance(grad, RowSparse)
    np.testing.assert_array_equal(grad.indices, [2, 9, 999_999])
    sums = [dy[0, 1] + dy[1, 0], dy[0, 0] + dy[0, 2] + dy[1, 1], dy[1, 2]]
    np.testing.assert_array_equal(grad.rows, sums)
    assert grad.nbytes == 3 * (8 + 2 * 4)
    # Equal indices are added in the order in which they stand: (1e8 + 1) - 1e8 is 0 in float32,
    # any other order of the three gives 1.
    grad = gradient_of(5, [[4, 4, 4]], np.array([[[1e8], [1], [-1e8]]], np.float32))
    assert grad.rows.item() == 0.0


def test_a_table_tied_to_the_output_has_one_dense_gradient():
    words, x = Embedding("words", 6, 3, input_sample_shape=(2,)), np.array([[1, 5], [5, 0]])
    net = FeedForwardNet([words, Flatten("flat"), Dense("middle", 3)], seed=1)
    net.add(Dense("scores", 6, W_specs=words.params["weight"], W_transpose=True))
    check_net_gradients(net, x)
    y = net.forward(True, x)
    items = [(item.layer, list(item.names)) for item in net.backward(np.ones_like(y))]
    middle = ("middle", ["middle/weight", "middle/bias"])
    assert items == [("scores", ["scores/bias"]), middle, ("flat", []), ("words", ["words/weight"])]
    y = net.forward(True, x)
    assert only(net.backward(np.ones_like(y)))["words/weight"].shape == (6, 3)


def test_a_table_used_twice_keeps_a_sparse_gradient():
    words, left, right = Embedding("words", 9, 2), Input("left", (3,)), Input("right", (3,))
    total = Merge("sum")(words(left), words(right))
    net = FeedForwardNet(inputs=[left, right], outputs=total, seed=1)
    feed = {"left": np.array([[1, 2, 1]]), "right": np.array([[8, 1, 0]])}
    check_net_gradients(net, feed)
    net.forward(True, feed)
    dy = np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2)
    grad, (a, b, c) = only(net.backward(dy))["words/weight"], dy[0]
    assert isinstance(grad, RowSparse)
    np.testing.assert_array_equal(grad.indices, [0, 1, 2, 8])
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


def test_no_gradient_reaches_the_indices():
    tokens = Dummy("tokens", input_sample_shape=(2, 2))
    net = FeedForwardNet([tokens, Flatten("flat"), Embedding("words", 7, 3)], seed=0)
    x = np.array([[[1, 4], [0, 6]]])
    net.forward(True, x)
    items = list(net.backward(np.ones((1, 4, 3), np.float32), output=["tokens", "words"]))
    assert items[-1].output_grads["tokens"] is None
    assert items[-1].output_grads["words"].shape == (1, 4, 3)
    np.testing.assert_array_equal(net.predict(x.astype(x.dtype.newbyteorder("S"))), net.predict(x))


def test_positions_equal_robertas(rng):
    m = pytest.importorskip("transformers.models.roberta.modeling_roberta")
    torch = pytest.importorskip("torch")
    ids = rng.integers(0, 4, (5, 9))
    want = m.RobertaEmbeddings.create_position_ids_from_input_ids(torch.tensor(ids), 1)
    net = FeedForwardNet([Positions("where", 1, input_sample_shape=(None,))])
    np.testing.assert_array_equal(net.predict(ids), want.numpy())
    decoder = net.decoder()
    got = [decoder(part) for part in np.split(ids, [1, 4], axis=1)]
    np.testing.assert_array_equal(np.concatenate(got, axis=1), want.numpy())


def test_sequences_of_any_length():
    net = FeedForwardNet([ClassToken("token", input_sample_shape=(None, 2))], seed=0)
    for steps in (1, 6):
        out = net.forward(False, np.ones((2, steps, 2), np.float32))
        assert out.shape == (2, steps + 1, 2)
        assert (out[:, 1:] == 1).all()


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


@pytest.mark.parametrize(("capacity", "rows", "lines"), [
    (0.1, 1000, 100), (1.0, 1000, 1000), (np.float64(0.5), 7, 3), (1, 1000, 1),
    (np.int64(40), 1000, 40), (40, 7, 7), (1e-6, 1000, 1)
])  # fmt: skip
def test_capacity_is_a_fraction_or_as_an_int_a_number(capacity, rows, lines):
    assert Cache(capacity=capacity).lines(rows) == lines


@pytest.mark.parametrize("policy", ["LRU", "Lfu", "LFUOpt"])
def test_a_policy_may_be_in_capitals(policy):
    """Hetu writes cstable_policy="LFUOpt"."""
    assert Cache(policy).policy == policy.lower()


@pytest.mark.parametrize("make", [PositionEmbedding, ClassToken])
def test_tables_start_small_and_take_specs(make):
    layer = built(make("it", 300), (None, 50))
    assert layer.params["weight"].value.std() == pytest.approx(0.02, rel=0.03)
    layer = built(make("it", 3, W_specs={"init": "constant", "value": 2.0}), (3, 5))
    assert (layer.params["weight"].value == 2).all()


# -- refusals -------------------------------------------------------------------------------------


def words_net(*shape):
    return FeedForwardNet([Embedding("words", 7, 3, input_sample_shape=shape)], seed=0)


@pytest.mark.parametrize("bad", [7, -1, 2**40])
def test_an_index_out_of_range_is_named_with_its_position(bad):
    x = np.zeros((3, 2, 2), np.int64)
    x[1, 0, 1] = bad
    words = (r"layer 'words': expected indices from 0 to 6 \(input_dim=7\);"
             rf" received the index {bad} at position \(1, 0, 1\)")  # fmt: skip
    expect_refused(lambda: words_net(2, 2).forward(True, x), DataError, words)


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_indices_that_are_no_integers_are_refused(dtype):
    expect_refused(lambda: words_net(2).forward(False, np.ones((1, 2), dtype)), DataError,
                   "'words': expected integer indices; received .* type")  # fmt: skip


def test_integers_that_feed_other_layers_too_are_converted_and_refused():
    x = Input("x", (2,))
    words = Flatten("flat")(Embedding("words", 7, 3)(x))
    net = FeedForwardNet(inputs=x, outputs=Concat("join", 1)(words, Dense("fc", 2)(x)), seed=0)
    with pytest.raises(DataError, match="an input that no other kind of layer reads"):
        net.forward(False, np.ones((1, 2), np.int64))


def test_a_sequence_longer_than_declared_is_refused_when_it_comes():
    net = FeedForwardNet([PositionEmbedding("where", 3, input_sample_shape=(None, 2))])
    assert net.forward(False, np.zeros((1, 2, 2), np.float32)).shape == (1, 2, 2)
    with pytest.raises(ShapeError, match="'where': expected at most max_length=3 steps"):
        net.forward(False, np.zeros((1, 4, 2), np.float32))


CAPACITIES = [0, -1, 0.0, -0.5, 1.5, 40.0, float("nan"), True, "all", None]


@refuses([
    *[(partial(Embedding, "it", *sizes), ArgumentError, "argument .*: expected an int of at least")
      for sizes in ((0, 3), (7, 0), (7.0, 3), ("7", 3))],
    *[(partial(Embedding, "it", 7, 3, padding_index=index), ArgumentError,
       "argument padding_index: expected an int") for index in (-1, 7, 1.0, "0")],
    (lambda: Embedding("it", 10, 4, cache="lru"), ArgumentError, "expected a Cache, or None"),
    (lambda: Embedding("it", 7, 3).build([(2,), (2,)]), ShapeError, "expected one input"),
    (lambda: PositionEmbedding("it", 3).build((4, 2)), ShapeError,
     "at most max_length=3 steps; received 4"),
    (lambda: PositionEmbedding("it").build((None, 2)), ShapeError, "expected max_length"),
    (lambda: PositionEmbedding("it").build((2,)), ShapeError, r"\(time, features\)"),
    (lambda: PositionEmbedding("it", 0), ArgumentError, "argument max_length"),
    (lambda: Positions("it", 1).build((5, 2)), ShapeError, r"\(time,\)"),
    *[(partial(Positions, "it", wrong), ArgumentError, "argument padding_index: expected")
      for wrong in (-1, None, 0.5)],
    (lambda: SinusoidalPosition("it").build((5,)), ShapeError, r"\(time, features\)"),
    (lambda: ClassToken("it").build((3,)), ShapeError, r"\(time, features\)"),
    (lambda: ClassToken("it", 0), ArgumentError, "argument count"),
    (lambda: Weight("it", (0,)), ArgumentError, "extents"),
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")


@refuses([
    *[(partial(Cache, capacity=capacity), ArgumentError, "Cache, capacity: expected a fraction")
      for capacity in CAPACITIES],
    (lambda: Cache("random"), ArgumentError, f"{Cache().policy!r} suits most data"),
    (lambda: Cache("lfuu"), ArgumentError, "did you mean 'lfu'"),
    (lambda: Cache(pull_bound=-1), ArgumentError, "pull_bound"),
    (lambda: Cache(push_bound=-1), ArgumentError, "push_bound"),
])  # fmt: skip
def test_refusals_of_caches(make, error, words):
    expect_refused(make, error, words)
