"""LSTM and GRU: SINGA's constructors, and steps by hand."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.layers import GRU, LSTM, RNN
from singanet.net import FeedForwardNet


@pytest.mark.parametrize(("kind", "mode", "input_mode"), [(LSTM, "lstm", "linear"),
                                                          (GRU, "gru", "skip")])  # fmt: skip
def test_cells_take_singas_arguments(kind, mode, input_mode):
    spec = {"init": "constant", "value": 0.5}
    given = {"dropout": 0.1, "num_layers": 2, "input_mode": input_mode, "bidirectional": True,
             "param_specs": spec, "input_shape": (3, 4)}  # fmt: skip
    layer, same = kind("l", 4, **given), RNN("l", 4, mode, **given)
    assert isinstance(layer, RNN)
    assert (layer.rnn_mode, layer.hidden_size, layer.dropout) == (mode, 4, 0.1)
    assert (layer.num_stacks, layer.input_mode, layer.bidirectional) == (2, input_mode, True)
    assert layer.get_output_sample_shape() == same.get_output_sample_shape() == (3, 8)
    assert all((value == 0.5).all() for value in layer.param_values())
    assert same.param_names() == layer.param_names()


def test_rnn_is_an_lstm_by_default_as_in_singa():
    assert RNN("r", 3).rnn_mode == "lstm"


def test_two_steps_of_an_lstm_by_hand():
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
