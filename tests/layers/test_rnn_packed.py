"""The packed form of recurrent weights, and SINGA's lists of steps."""

import numpy as np
import pytest

from singanet.errors import ArgumentError, CallOrderError, ShapeError
from singanet.layers import GRU, LSTM, RNN, StepList, padded_to_steps, steps_to_padded


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
    more = {"dropout": 0.0, "num_layers": 2, "input_mode": input_mode, "bidirectional": True}
    layer, other = (built(RNN(name, 3, mode, **more), features=3) for name in "ro")
    file = rng.standard_normal(layer._packed_size()).astype(np.float32)
    layer.unpack(file)
    np.testing.assert_array_equal(layer.pack(), file)
    other.unpack(layer.pack())
    for suffix, param in layer.params.items():
        np.testing.assert_array_equal(other.params[suffix].value, param.value)


def test_layout_matrices_of_each_run_first_and_then_the_biases():
    layer = built(GRU("r", 2, bidirectional=True), features=3)
    layer.unpack(np.arange(layer._packed_size(), dtype=np.float32))
    gates, three, two = layer.gates(), np.arange(6).reshape(2, 3), np.arange(4).reshape(2, 2)
    # Forward: three input matrices of 2 rows and 3 columns, then three of 2 by 2; then backward.
    for name, wanted in (
        ("forward/r/weight_x", three), ("forward/n/weight_h", 18 + 8 + two),
        ("backward/z/weight_x", 30 + 6 + three), ("forward/r/bias_x", [60, 61]),
        ("forward/n/bias_h", [70, 71]), ("backward/n/bias_h", [82, 83]),
    ):  # fmt: skip
        np.testing.assert_array_equal(gates[f"l0/{name}"].T, wanted)


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


SIZES = [4, 3, 3, 1]


def steps(rng, features=2, sizes=SIZES):
    return [rng.standard_normal((size, features)) for size in sizes]


def test_lists_become_padded_batches_and_back(rng):
    xs = steps(rng)
    padded, lengths = steps_to_padded(xs)
    assert padded.shape == (4, 4, 2)
    np.testing.assert_array_equal(lengths, [4, 3, 3, 1])
    assert not padded[1, 3].any()
    assert not padded[3, 1:].any()
    for got, want in zip(padded_to_steps(padded, SIZES), xs, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shapes", [[], [(2, 3), (3, 3)], [(2, 3), (2, 4)], [(2,)], [(2, 3), (2,)]])
def test_refuses_lists_that_are_no_sequences(shapes):
    with pytest.raises(ShapeError, match="steps_to_padded: expected"):
        steps_to_padded([np.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("sizes", [[2, 2], [4, 1, 1], [-1, 1, 1]])
def test_refuses_sizes_that_do_not_fit(sizes):
    with pytest.raises(ShapeError, match="padded_to_steps: expected 3 batch sizes of at most 3"):
        padded_to_steps(np.zeros((3, 3, 1)), sizes)


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
def test_forward_and_backward_in_singas_form(mode, rng):
    """Each output by a loop over the layer's own single steps; gradients by differences."""
    layer = RNN("rnn", 3, mode, num_stacks=2, bidirectional=False, return_state=True)
    count = 2 if mode == "lstm" else 1
    call = StepList(layer)
    call.forward(False, [*steps(rng), *[None] * count])
    for param in layer.params.values():
        param.retype(rng.standard_normal(param.shape))
    xs, states = steps(rng), [rng.standard_normal((2, 4, 3)) for _ in range(count)]
    outs = call.forward(True, [*xs, *states])
    assert [y.shape for y in outs] == [(4, 3), (3, 3), (3, 3), (1, 3)] + [(2, 4, 3)] * count
    one = StepList(layer)
    now = [s.copy() for s in states]
    for x, y in zip(xs, outs, strict=False):
        part = [s[:, : len(x)] for s in now]
        got, *new = one.forward(False, [x, *part])
        np.testing.assert_allclose(got, y, rtol=1e-12, atol=1e-12)
        for s, n in zip(now, new, strict=True):
            s[:, : len(x)] = n
    np.testing.assert_allclose(outs[-count:], now, rtol=1e-12, atol=1e-12)
    dys = [rng.standard_normal(y.shape) for y in outs]
    dxs, (dw,) = call.backward(True, dys)
    assert dw.shape == (layer._packed_size(),)

    def value(inputs):
        return sum((y * d).sum() for y, d in zip(call.forward(False, inputs), dys, strict=True))

    for k, dx in enumerate(dxs):
        along = rng.standard_normal(dx.shape)
        inputs = [*xs, *states]
        moved = [[*inputs[:k], inputs[k] + s * along, *inputs[k + 1 :]] for s in (1e-6, -1e-6)]
        slope = (value(moved[0]) - value(moved[1])) / 2e-6
        assert slope == pytest.approx((dx * along).sum(), rel=1e-6, abs=1e-6)
    along, weights = rng.standard_normal(dw.shape), layer.pack()
    values = []
    for sign in (1e-6, -1e-6):
        layer.unpack(weights + sign * along)
        values.append(value([*xs, *states]))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx((dw * along).sum(), rel=1e-6)


def test_empty_states_stand_for_zeros(rng):
    layer = LSTM("rnn", 3, bidirectional=True, return_state=True)
    call, xs = StepList(layer), steps(rng)
    want = call.forward(False, [*xs, np.zeros((2, 4, 3)), np.zeros((2, 4, 3))])
    got = call.forward(True, [*xs, np.empty(0), None])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    dys = [np.ones(y.shape) for y in got[:-2]]
    dxs, (dw,) = call.backward(True, [*dys, None, np.empty(0)])
    assert dxs[-1].shape == (2, 4, 3)
    assert dw.any()


def test_gradients_are_packed_as_the_weights_are(rng):
    layer = GRU("rnn", 3, return_state=True)
    call = StepList(layer)
    outs = call.forward(True, [*steps(rng), None])
    _, (dw,) = call.backward(True, outs)
    layer.unpack(dw.astype(np.float32))
    again = layer.pack({suffix: param.value for suffix, param in layer.params.items()})
    np.testing.assert_array_equal(again, dw.astype(np.float32))


def test_wrong_order_and_wrong_forms_are_refused(rng):
    layer = GRU("rnn", 3, return_state=True)
    call, xs = StepList(layer), steps(rng)
    with pytest.raises(CallOrderError, match="a training forward before"):
        call.backward(True, [*xs, None])
    with pytest.raises(ShapeError, match=r"initial states of shape \(1, 4, 3\)"):
        call.forward(True, [*xs, np.zeros((1, 3, 3))])
    outs = call.forward(False, [*xs, None])
    with pytest.raises(CallOrderError):
        call.backward(True, outs)
    outs = call.forward(True, [*xs, None])
    with pytest.raises(ShapeError, match=r"gradients of 4 steps, with batches \[4, 3, 3, 1\]"):
        call.backward(True, outs[1:])
    call.backward(True, outs)
    with pytest.raises(CallOrderError):
        call.backward(True, outs)


@pytest.mark.parametrize("layer", [GRU("rnn", 3), None, LSTM("r", 2, return_sequences=False)])
def test_wants_a_layer_that_returns_its_states(layer):
    with pytest.raises(ArgumentError, match="StepList: expected an RNN"):
        StepList(layer)
