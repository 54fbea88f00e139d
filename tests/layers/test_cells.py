"""LSTM and GRU: SINGA's constructors, and steps by hand."""

from __future__ import annotations

import pytest

from singanet.layers import GRU, LSTM, RNN


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
