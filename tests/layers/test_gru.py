"""GRU: SINGA's constructor, and where the reset gate stands."""

from __future__ import annotations

import numpy as np

from singanet.layers import GRU
from singanet.net import FeedForwardNet


def test_takes_singas_arguments_in_their_order():
    layer = GRU("g", 4, 0.1, 2, "skip", True, None, (3, 4))
    assert (layer.rnn_mode, layer.hidden_size, layer.dropout) == ("gru", 4, 0.1)
    assert (layer.num_stacks, layer.input_mode, layer.bidirectional) == (2, "skip", True)
    assert layer.get_output_sample_shape() == (3, 8)


def test_the_reset_gate_stands_behind_the_matrix_and_its_bias():
    net = FeedForwardNet()
    layer = net.add(GRU("g", 1, input_sample_shape=(1, 1)))
    gates = layer.gates()
    for value in gates.values():
        value[...] = 0.0
    # With h = 0 only the bias of n stands behind r = σ(1): n = tanh(σ(1) · 2), z = 1/2.
    gates["l0/forward/r/bias_x"][...] = 1.0
    gates["l0/forward/n/bias_h"][...] = 2.0
    y = net.forward(False, np.zeros((1, 1, 1), np.float32))
    np.testing.assert_allclose(y.item(), 0.5 * np.tanh(0.7310585786 * 2), rtol=1e-6)


def test_an_open_update_gate_keeps_the_state():
    net = FeedForwardNet()
    layer = GRU("g", 3, return_state=True, input_sample_shape=[(5, 2), (1, 3)])
    net.add(layer)
    layer.gates()["l0/forward/z/bias_x"][...] = 100.0
    rng = np.random.default_rng(0)
    h = rng.standard_normal((2, 1, 3)).astype(np.float32)
    x = rng.standard_normal((2, 5, 2)).astype(np.float32)
    _, final = net.forward(False, [x, h])
    np.testing.assert_allclose(final, h, rtol=1e-6)
