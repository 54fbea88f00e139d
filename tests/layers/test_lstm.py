"""LSTM: SINGA's constructor, and one step by hand."""

from __future__ import annotations

import numpy as np

from singanet.layers import LSTM, RNN
from singanet.net import FeedForwardNet


def test_takes_singas_arguments_in_their_order():
    spec = {"init": "constant", "value": 0.5}
    layer = LSTM("l", 4, 0.1, 2, "linear", True, spec, (3, 5))
    assert isinstance(layer, RNN)
    assert (layer.rnn_mode, layer.hidden_size, layer.dropout) == ("lstm", 4, 0.1)
    assert (layer.num_stacks, layer.input_mode, layer.bidirectional) == (2, "linear", True)
    assert layer.get_output_sample_shape() == (3, 8)
    assert all((value == 0.5).all() for value in layer.param_values())
    same = RNN("l", 4, "lstm", 0.1, 2, "linear", True, spec, (3, 5))
    assert same.get_output_sample_shape() == (3, 8)
    assert same.param_names() == layer.param_names()


def test_rnn_is_an_lstm_by_default_as_in_singa():
    assert RNN("r", 3).rnn_mode == "lstm"


def test_two_steps_by_hand():
    layer = LSTM("l", 1, input_sample_shape=(2, 1))
    net = FeedForwardNet()
    net.add(layer)
    gates = layer.gates()
    for gate, (w, u, b) in {
        "i": (0.5, -0.3, 0.1),
        "f": (0.2, 0.4, 1.0),
        "g": (-0.7, 0.6, 0.0),
        "o": (0.9, 0.1, -0.2),
    }.items():
        gates[f"l0/forward/{gate}/weight_x"][...] = w
        gates[f"l0/forward/{gate}/weight_h"][...] = u
        gates[f"l0/forward/{gate}/bias_x"][...] = b
        gates[f"l0/forward/{gate}/bias_h"][...] = 0.0
    y = net.forward(False, np.array([[[1.0], [-2.0]]], np.float32))
    # i, f, g, o = σ(.6), σ(1.2), tanh(-.7), σ(.7); c = i g
    c = 0.6456563062 * -0.6043677771
    h = 0.6681877721 * np.tanh(c)
    np.testing.assert_allclose(y[0, 0, 0], h, rtol=1e-6)
    i = 1 / (1 + np.exp(-(-1.0 - 0.3 * h + 0.1)))
    f = 1 / (1 + np.exp(-(-0.4 + 0.4 * h + 1.0)))
    o = 1 / (1 + np.exp(-(-1.8 + 0.1 * h - 0.2)))
    c = f * c + i * np.tanh(1.4 + 0.6 * h)
    np.testing.assert_allclose(y[0, 1, 0], o * np.tanh(c), rtol=1e-5)
