"""Nets over sequences whose length differs from call to call."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ShapeError
from singanet.layers import (
    GRU,
    Activation,
    Dense,
    Embedding,
    LayerNorm,
    Softmax,
    TimeDistributed,
)
from singanet.testing import check_net_gradients


def language_model():
    net = FeedForwardNet(seed=0)
    net.add(Embedding("chars", 7, 5, input_sample_shape=(None,)))
    net.add(GRU("gru", 4))
    net.add(LayerNorm("norm"))
    net.add(Activation("tanh", "tanh"))
    net.add(TimeDistributed("scores", Dense("fc", 7)))
    net.add(Softmax("chance", axis=-1))
    return net


def test_one_net_takes_every_length():
    net = language_model()
    x = np.random.default_rng(0).integers(0, 7, (3, 9))
    whole = net.forward(False, x)
    assert whole.shape == (3, 9, 7)
    # The recurrent layer looks only back, so a shorter text gives the first outputs.
    for length in (1, 4):
        np.testing.assert_allclose(net.forward(False, x[:, :length]), whole[:, :length], rtol=1e-5)
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, rtol=1e-5)
    assert "any" in net.summary()


@pytest.mark.parametrize("length", [1, 6])
def test_gradients_are_right_at_every_length(length):
    check_net_gradients(language_model(), np.random.default_rng(1).integers(0, 7, (2, length)))


def test_an_axis_that_parameters_span_must_be_known():
    with pytest.raises(ShapeError, match=r"layer 'norm'.*a known size from axis 1 on"):
        LayerNorm("norm", axis=1).build((None, 4))
    net = FeedForwardNet()
    with pytest.raises(ShapeError, match="layer 'inner'"):
        net.add(TimeDistributed("steps", Dense("inner", 3), input_sample_shape=(5, None)))
