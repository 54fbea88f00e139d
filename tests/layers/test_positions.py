"""PositionEmbedding and SinusoidalPosition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import PositionEmbedding, Positions, SinusoidalPosition
from singanet.net import FeedForwardNet
from singanet.testing import LayerCase


class TestPositionEmbedding(LayerCase):
    in_shapes = (4, 3)

    def make(self):
        return PositionEmbedding("where")

    def expected(self, params, x):
        return np.stack([sample + params["weight"] for sample in x])


class TestLongerTableThanSequences(TestPositionEmbedding):
    def make(self):
        return PositionEmbedding("where", 7)

    def expected(self, params, x):
        return np.stack([sample + params["weight"][:4] for sample in x])


def test_starts_small_and_takes_specs():
    layer = PositionEmbedding("where", 300)
    layer.build((None, 50))
    assert layer.params["weight"].value.std() == pytest.approx(0.02, rel=0.03)
    layer = PositionEmbedding("where", 3, W_specs={"init": "constant", "value": 2.0})
    layer.build((None, 5))
    assert (layer.params["weight"].value == 2).all()


def test_refuses_sequences_longer_than_declared():
    with pytest.raises(ShapeError, match="at most max_length=3 steps; received 4"):
        PositionEmbedding("where", 3).build((4, 2))
    net = FeedForwardNet()
    net.add(PositionEmbedding("where", 3, input_sample_shape=(None, 2)))
    assert net.forward(False, np.zeros((1, 2, 2), np.float32)).shape == (1, 2, 2)
    with pytest.raises(ShapeError, match="'where': expected at most max_length=3 steps"):
        net.forward(False, np.zeros((1, 4, 2), np.float32))


def test_any_length_needs_a_maximum():
    with pytest.raises(ShapeError, match="expected max_length"):
        PositionEmbedding("where").build((None, 2))
    with pytest.raises(ShapeError, match=r"\(time, features\)"):
        PositionEmbedding("where").build((2,))
    with pytest.raises(ArgumentError, match="argument max_length"):
        PositionEmbedding("where", 0)


class TestPositions(LayerCase):
    in_shapes = (6,)

    def make(self):
        return Positions("where", 1)

    def draw(self, rng, batch):
        return rng.choice([0, 1, 1, 2, 3], (batch, *self.in_shapes))

    def expected(self, params, x):
        y = np.ones_like(x)
        for n, row in enumerate(x):
            there = [t for t, index in enumerate(row) if index != 1]
            y[n, there] = 2 + np.arange(len(there))
        return y


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


def test_positions_refuse_what_is_no_sequence_of_indices():
    with pytest.raises(ShapeError, match=r"layer 'where': .*\(time,\)"):
        Positions("where", 1).build((5, 2))
    for wrong in (-1, None, 0.5):
        with pytest.raises(ArgumentError, match="'where', argument padding_index: expected"):
            Positions("where", wrong)


class TestSinusoidalPosition(LayerCase):
    in_shapes = (6, 5)

    def make(self):
        return SinusoidalPosition("where")

    def expected(self, params, x):
        y = x.copy()
        for t in range(x.shape[1]):
            for i in range(x.shape[2]):
                angle = t / 10000 ** ((i - i % 2) / x.shape[2])
                y[:, t, i] += math.cos(angle) if i % 2 else math.sin(angle)
        return y


def test_sines_refuse_other_samples():
    with pytest.raises(ShapeError, match=r"layer 'where': .*\(time, features\)"):
        SinusoidalPosition("where").build((5,))
