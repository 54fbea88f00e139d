"""Relative positions: buckets, one table for a stack, steps one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ArgumentError
from singanet.layers import Dense, Embedding, Input, MultiHeadAttention, RelativePositions
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (32, 256), (16, 64), (8, 20)])
def test_buckets_equal_transformers(buckets, longest, bidirectional):
    torch = pytest.importorskip("torch")
    m = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = np.arange(-600, 600)
    want = m.T5Attention._relative_position_bucket(
        torch.tensor(distance), bidirectional, num_buckets=buckets, max_distance=longest
    )
    got = RelativePositions(buckets, longest, bidirectional)._buckets_of(distance)
    np.testing.assert_array_equal(got, want.numpy())


def stack(steps=12, seed=0, **given):
    relative = RelativePositions(8, 10, bidirectional=False)
    ids = Input("ids", (steps,), "int64")
    x, table = Embedding("words", 9, 8)(ids), None
    for name in ("one", "two", "three"):
        layer = MultiHeadAttention(
            name, 2, causal=True, relative=relative, relative_specs=table, **given
        )
        x = layer(x)
        table = layer.params["relative_weight"]
    return FeedForwardNet(
        inputs=ids, outputs=Dense("fc", 9)(x), loss=SoftmaxCrossEntropy(), seed=seed
    )


def test_a_stack_shares_one_table_and_trains_it(rng):
    net = stack()
    assert sum(name.endswith("relative_weight") for name in net.param_names()) == 1
    ids = rng.integers(0, 9, (4, 12))
    y = np.roll(ids, -1, axis=1)
    losses = [net.step(ids, y, SGD(lr=0.5))[0] for _ in range(30)]
    assert losses[-1] < losses[0]
    assert net["one"].params["relative_weight"].value.any()
    again = FeedForwardNet.from_config(net.to_config(), seed=1)
    for ours, theirs in zip(net.params(), again.params(), strict=True):
        theirs.value[...] = ours.value
    np.testing.assert_array_equal(again.predict(ids), net.predict(ids))


@pytest.mark.parametrize("cuts", [range(1, 12), [5], [1, 8, 9]])
def test_parts_give_what_the_whole_gives(cuts, rng):
    net = stack()
    table = net["one"].params["relative_weight"]
    table.value[...] = rng.standard_normal(table.shape)
    net.as_type("float64")
    ids = rng.integers(0, 9, (3, 12))
    decoder = net.decoder()
    got = [decoder(part) for part in np.split(ids, list(cuts), axis=1)]
    np.testing.assert_allclose(np.concatenate(got, 1), net.predict(ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"buckets": 3}, "buckets: expected an int of at least 4"),
        ({"buckets": 6}, "buckets: expected a multiple of 4"),
        ({"buckets": 3, "bidirectional": False}, "buckets: expected a multiple of 2"),
        ({"max_distance": 8}, "max_distance: expected an int from 9"),
        ({"max_distance": 1e3}, "max_distance: expected an int from 9"),
    ],
)
def test_refuses_buckets_that_have_no_sense(given, what):
    with pytest.raises(ArgumentError, match=f"RelativePositions, {what}"):
        RelativePositions(**given)
