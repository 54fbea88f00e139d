"""The packed form of recurrent weights."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import CallOrderError, ShapeError
from singanet.layers import GRU, LSTM, RNN, StepList


def built(layer, features=2):
    layer.build((None, features))
    return layer


@pytest.mark.parametrize(
    ("layer", "features", "size"),
    [
        # SINGA's formula, Σ g·d·H·((I or H)+H+2), and by hand where its check is wrong:
        (RNN("r", 4, "tanh"), 2, 32),  # the reference's value
        (LSTM("r", 3), 5, 4 * 3 * (5 + 3 + 2)),
        (GRU("r", 3, num_stacks=2), 5, 3 * 3 * (5 + 3 + 2) + 3 * 3 * (3 + 3 + 2)),
        # the second stack of a bidirectional layer sees 2H features
        (LSTM("r", 3, num_stacks=2, bidirectional=True), 5, 2 * 12 * (10 + 6 + 3 + 2)),
        # a skipped input has no matrix
        (GRU("r", 3, input_mode="skip"), 3, 3 * 3 * (3 + 2)),
    ],
)
def test_size(layer, features, size):
    built(layer, features)
    assert layer._packed_size() == size
    assert layer.pack().shape == (size,)
    assert sum(value.size for value in layer.param_values()) == size


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize("input_mode", ["linear", "skip"])
def test_reading_and_writing_is_exact(mode, input_mode, rng):
    layer = built(
        RNN("r", 3, mode, dropout=0.0, num_layers=2, input_mode=input_mode, bidirectional=True),
        features=3,
    )
    file = rng.standard_normal(layer._packed_size()).astype(np.float32)
    layer.unpack(file)
    np.testing.assert_array_equal(layer.pack(), file)
    other = built(
        RNN("o", 3, mode, dropout=0.0, num_layers=2, input_mode=input_mode, bidirectional=True),
        features=3,
    )
    other.unpack(layer.pack())
    for suffix, param in layer.params.items():
        np.testing.assert_array_equal(other.params[suffix].value, param.value)


def test_layout_matrices_of_each_run_first_and_then_the_biases():
    layer = built(GRU("r", 2, bidirectional=True), features=3)
    layer.unpack(np.arange(layer._packed_size(), dtype=np.float32))
    gates = layer.gates()
    # Forward: three input matrices of 2 rows and 3 columns, then three of 2 by 2; then backward.
    np.testing.assert_array_equal(gates["l0/forward/r/weight_x"].T, np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(
        gates["l0/forward/n/weight_h"].T, 18 + 8 + np.arange(4).reshape(2, 2)
    )
    np.testing.assert_array_equal(
        gates["l0/backward/z/weight_x"].T, 30 + 6 + np.arange(6).reshape(2, 3)
    )
    np.testing.assert_array_equal(gates["l0/forward/r/bias_x"], [60, 61])
    np.testing.assert_array_equal(gates["l0/forward/n/bias_h"], [70, 71])
    np.testing.assert_array_equal(gates["l0/backward/n/bias_h"], [82, 83])


def test_all_weights_a_tenth_is_elman_with_two_biases_of_a_tenth():
    # The oracle of SINGA's C++ test.
    x = np.array([[1.0, 1.0], [-2.0, 0.5]])
    h = np.zeros(4)
    for row in x:
        h = np.tanh(0.1 * row.sum() + 0.1 * h.sum() + 0.1 + 0.1) * np.ones(4)
    layer = RNN("r", 4, "tanh", return_state=True)
    layer.build([(None, 2), (1, 4), ()])
    layer.unpack(np.full(32, 0.1, np.float32))
    *ys, hy = StepList(layer).forward(False, [*x[:, None].astype(np.float32), None])
    np.testing.assert_allclose(ys[-1][0], h, rtol=1e-6)
    np.testing.assert_allclose(hy[0, 0], h, rtol=1e-6)


def test_gates_are_views():
    layer = built(LSTM("r", 3))
    gates = layer.gates()
    assert len(gates) == 16
    gates["l0/forward/f/bias_h"][...] = 7
    np.testing.assert_array_equal(
        layer.params["l0/forward/bias_h"].value, [0, 0, 0, 7, 7, 7, 0, 0, 0, 0, 0, 0]
    )


@pytest.mark.parametrize("shape", [(31,), (33,), (4, 8), ()])
def test_refuses_another_size_and_stays_as_it_was(shape):
    layer = built(RNN("r", 4, "tanh"))
    before = layer.pack()
    with pytest.raises(ShapeError, match=r"layer 'r': expected packed weights of shape \(32,\)"):
        layer.unpack(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(layer.pack(), before)


@pytest.mark.parametrize("method", ["pack", "gates", "_packed_size"])
def test_needs_a_layer_that_was_set_up(method):
    with pytest.raises(CallOrderError, match="layer 'r': expected a built layer"):
        getattr(LSTM("r", 3), method)()
