"""RNN in all modes, against loops over steps and samples, and against PyTorch and Keras."""

import copy
from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from singanet.layers import GRU, LSTM, RNN, Context, Input, SimpleRNN
from singanet.loss import SquaredError
from singanet.net import FeedForwardNet
from singanet.ops import numpy_ops
from singanet.optimizer import SGD
from singanet.testing import check_gradients
from tests.kit.layers import built, case, cases, expect_refused, refuses

MODES = ("lstm", "gru", "gru_before", "tanh", "relu")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(mode, x_part, weight_h, bias_x, bias_h, h, c):
    """One sample, one step: what x adds without bias → new h and c. From the definitions."""
    size, a, b = len(h), x_part + bias_x, h @ weight_h + bias_h
    if mode == "gru_before":
        r, z = np.split(sigmoid((a + b)[: 2 * size]), 2)
        inner = (r * h) @ weight_h[:, 2 * size :] + bias_h[2 * size :]
        return (1 - z) * np.tanh(a[2 * size :] + inner) + z * h, c
    if mode == "lstm":
        i, f, g, o = np.split(a + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if mode == "gru":
        r = sigmoid(a[:size] + b[:size])
        z = sigmoid(a[size : 2 * size] + b[size : 2 * size])
        n = np.tanh(a[2 * size :] + r * b[2 * size :])
        return (1 - z) * n + z * h, c
    return (np.tanh(a + b) if mode == "tanh" else np.maximum(a + b, 0)), c


def loops(layer, params, x, h0=None, c0=None, there=None):
    """Outputs (N, T, D·H) and final h and c (N, stacks·D, H), sample by sample."""
    if layer.go_backwards:
        x, there = x[:, ::-1], None if there is None else there[:, ::-1]
    n, steps, _ = x.shape
    size, directions = layer.hidden_size, 2 if layer.bidirectional else 1
    there = np.ones((n, steps), bool) if there is None else there
    zero = np.zeros((n, layer.num_stacks * directions, size))
    h_last, c_last = [(zero if s is None else s).copy() for s in (h0, c0)]
    y = np.zeros((n, steps, directions * size))
    for s in range(n):
        below = x[s, there[s]]
        for stack in range(layer.num_stacks):
            outs = np.zeros((len(below), directions * size))
            for d in range(directions):
                w_x, w_h, *biases = (
                    params.get(f"l{stack}/{('forward', 'backward')[d]}/{k}")
                    for k in ("weight_x", "weight_h", "bias_x", "bias_h")
                )
                b_x, b_h = (np.zeros(w_h.shape[1]) if b is None else b for b in biases)
                k = stack * directions + d
                h, c = h_last[s, k], c_last[s, k]
                for t in list(range(len(below)))[:: -1 if d else 1]:
                    part = np.tile(below[t], len(b_x) // size) if w_x is None else below[t] @ w_x
                    h, c = step(layer.rnn_mode, part, w_h, b_x, b_h, h, c)
                    outs[t, d * size : (d + 1) * size] = h
                h_last[s, k], c_last[s, k] = h, c
            below = outs
        y[s, there[s]] = below
    return y, h_last, c_last


def recurrent(shapes, draw=None, modes=(True,), batch=3, kind=RNN, units=4, **given):
    """The layer against the loops."""

    def expected(params, x):
        layer = built(kind("rnn", units, **given), shapes)
        parts = x if isinstance(x, list) else [x]
        states = parts[1 : 1 + layer.inputs.states]
        there = parts[-1] != 0 if layer.inputs.tells else None
        if layer.inputs.tells == "lengths":
            there = np.arange(parts[0].shape[1]) < parts[-1].reshape(-1, 1)
        y, h, c = loops(layer, params, parts[0], *states, there=there)
        if not layer.return_sequences:
            y = h[:, -layer.directions :].reshape(len(y), -1)
        finals = [h, c] if layer.rnn_mode == "lstm" else [h]
        return [y, *finals] if layer.return_state else y

    make = partial(kind, "rnn", units, **given)
    return case(make, shapes, expected, draw, _modes=modes, batch=batch)


def ending(last):
    """Draw floats, and as the last input each sample's lengths or mask."""
    return lambda rng, *shapes: [*map(rng.standard_normal, shapes[:-1]),
                                 np.array(last)[: shapes[-1][0]]]  # fmt: skip


def everything(mode, **given):
    """Two stacks, both directions, states in and out, lengths in no order and with a zero."""
    states = [(4, 4)] * (2 if mode == "lstm" else 1)
    given = {"num_layers": 2, "bidirectional": True, "return_state": True, **given}
    return recurrent([(5, 4), *states, ()], ending([3, 5, 0, 4]), batch=4, rnn_mode=mode, **given)


def masked(mode):
    """Steps missing anywhere, of one sample all; backwards, without bias, with all dropouts."""
    states = [(2, 2)] * (2 if mode == "lstm" else 1)
    mask = ending([[1, 0, 1, 1], [0, 0, 1, 0], [1] * 4, [0] * 4])
    way = {"bidirectional": True, "return_state": True, "go_backwards": True, "use_bias": False}
    return recurrent([(4, 2), *states, (4,)], mask, (True, False), 4, units=2, rnn_mode=mode,
                     input_dropout=0.3, recurrent_dropout=0.4, **way)  # fmt: skip


CASES = {
    "LSTM": recurrent((5, 3), kind=LSTM),
    "GRU": recurrent((5, 3), kind=GRU),
    "SimpleRNN": recurrent((5, 3), kind=SimpleRNN),
    "tanh": recurrent((5, 3), rnn_mode="tanh"),
    "relu": recurrent((5, 3), rnn_mode="relu"),
    "one step": recurrent((1, 3), kind=LSTM),
    **{f"everything, {mode}": everything(mode) for mode in MODES},
    **{f"all, skip, {mode}": everything(mode, input_mode="skip") for mode in ("lstm", "gru")},
    **{f"mask, {mode}": masked(mode) for mode in ("lstm", "gru", "gru_before", "tanh")},
    "last states only": everything("lstm", return_sequences=False),
    "last output only": everything("gru", return_sequences=False, return_state=False),
    # Falling, so nothing has to be sorted.
    "lengths in a column": recurrent([(3, 2), (1,)], ending([[3], [2], [1], [1]]), kind=GRU,
                                     units=3),
    "states without lengths": recurrent([(3, 2), (1, 3), (1, 3)], kind=LSTM, units=3,
                                        return_sequences=False),
    "dropout between stacks": recurrent((4, 3), modes=(True, False), kind=LSTM, units=3,
                                        dropout=0.4, num_stacks=3),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def run(layer, x, train=True, seed=0):
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, np.random.default_rng(seed), params, train, keep=True)
    return ctx, layer.forward(ctx, x)


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_past_the_length_changes_nothing(mode, rng):
    layer = built(RNN("rnn", 3, mode, num_stacks=2, bidirectional=True), [(6, 2), ()])
    lengths, x = np.array([2, 6, 4]), rng.standard_normal((3, 6, 2)).astype(np.float32)
    other = x.copy()
    other[0, 2:], other[2, 4:] = np.nan, np.inf
    (ctx, y), (ctx2, y2) = run(layer, [x, lengths]), run(layer, [other, lengths])
    np.testing.assert_array_equal(y, y2)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dy2 = dy.copy()
    dy2[0, 2:] = 1e30
    (dx, none), grads = layer.backward(ctx, dy)
    (dx2, _), grads2 = layer.backward(ctx2, dy2)
    assert none is None
    assert not y[0, 2:].any()
    assert not dx[0, 2:].any()
    np.testing.assert_array_equal(dx, dx2)
    for suffix, grad in grads.items():
        np.testing.assert_array_equal(grad, grads2[suffix])


def test_states_handed_on_give_the_run_in_one_piece(rng):
    layer = built(LSTM("rnn", 4, num_stacks=2, return_state=True), [(None, 3), (2, 4), (2, 4)])
    x = rng.standard_normal((2, 7, 3)).astype(np.float32)
    states, pieces = [np.zeros((2, 2, 4), np.float32)] * 2, []
    _, (whole, *finals) = run(layer, [x, *states])
    for t in range(7):
        _, (y, *states) = run(layer, [x[:, t : t + 1], *states], train=False)
        pieces.append(y)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(states, finals, rtol=1e-5, atol=1e-6)


def test_dropout_is_the_probability_of_dropping_and_spares_the_last_stack():
    # Wide identity-like stacks: relu with unit weights hands the first stack's values on.
    layer = built(RNN("rnn", 500, "relu", dropout=0.25, num_stacks=2, input_mode="skip"), (1, 500))
    for suffix, param in layer.params.items():
        param.value[...] = np.eye(500) if suffix == "l1/forward/weight_x" else 0.0
    x = np.ones((3, 1, 500), np.float32)
    _, y = run(layer, x)
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    # Six standard deviations of 1,500 draws.
    assert abs((y == 0).mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 1500)
    _, still = run(layer, x, train=False)
    np.testing.assert_array_equal(still, x)
    with pytest.warns(UserWarning, match="layer 'rnn'.*input_dropout=0.9 for Keras' dropout"):
        single = RNN("rnn", 3, "relu", dropout=0.9)
    single.build((2, 3))
    x = np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(single, x)[1], run(single, x, train=False)[1])


@pytest.mark.parametrize("mode", MODES)
def test_states_are_rounded_where_the_weights_read_them(mode):
    """To 256 steps of a sample's range; gradients are the plain layer's, nearly."""
    found = {}
    x = np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)
    for rounds in (False, True):
        net = FeedForwardNet([RNN("rnn", 5, mode, round_states=rounds)], seed=0)
        net.build((6, 4))
        net.loss = SquaredError()
        y = net.forward(True, x)
        grads = {n: g for names, _, gs in net.backward(np.ones_like(y))
                 for n, g in zip(names, gs, strict=True)}  # fmt: skip
        found[rounds] = y, grads
    (plain, of_plain), (rounded, of_rounded) = found[False], found[True]
    np.testing.assert_allclose(plain[:, 0], rounded[:, 0], 1e-5)  # the first state is zero
    assert 0 < np.abs(plain - rounded).max() < 0.03
    for name, grad in of_plain.items():
        np.testing.assert_allclose(of_rounded[name], grad, rtol=0.1, atol=0.1)
    sgd = SGD(0.0)
    losses = [net.step(x, np.zeros_like(y), sgd)[0] for _ in range(3)]
    assert losses[0] == losses[1] == losses[2]  # the last ones are recorded
    whole = FeedForwardNet([RNN("rnn", 2, "relu", input_mode="skip", round_states=True)])
    whole.build((2, 2))
    whole["rnn"].params["l0/forward/weight_h"].value[...] = np.eye(2)
    y = whole.predict(np.array([[[1.0, 0.31], [0, 0]], [[9.0, 0.31], [0, 0]]], np.float32))
    steps = np.array([[1 / 255], [9 / 255]])
    np.testing.assert_allclose(y[:, 1], np.rint(y[:, 0] / steps) * steps, rtol=1e-6)


def test_units_of_the_state_and_features_are_dropped_from_all_steps_of_a_sample():
    layer = RNN("rnn", 400, "relu", input_mode="skip", use_bias=False, recurrent_dropout=0.25)
    layer.build((3, 400))
    layer.params["l0/forward/weight_h"].value[...] = np.eye(400)
    _, y = run(layer, np.ones((2, 3, 400), np.float32))
    # h = 1 + m h: 1 throughout where the mask m is 0, else a sum of powers of 1 / keep.
    powers = np.cumsum((4 / 3) ** np.arange(3)).astype(np.float32)
    dropped = y[:, 1] == 1
    np.testing.assert_allclose(y[:, 2], np.where(dropped, 1, powers[2]), rtol=1e-6)
    assert abs(dropped.mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 800)
    assert (dropped[0] != dropped[1]).any()
    layer = RNN("rnn", 300, "relu", input_mode="skip", use_bias=False, input_dropout=0.5)
    layer.build((3, 300))
    layer.params["l0/forward/weight_h"].value[...] = 0
    _, y = run(layer, np.ones((2, 3, 300), np.float32))
    assert set(np.unique(y)) == {0.0, 2.0}
    np.testing.assert_array_equal(y, np.repeat(y[:, :1], 3, axis=1))
    assert (y[0] != y[1]).any()


def _stateful_net(recorded=True):
    layer = LSTM("rnn", 3, stateful=2, num_stacks=2, input_sample_shape=(3, 2))
    net = FeedForwardNet([layer], loss=SquaredError(), seed=1)
    net.programs.enabled = recorded
    return net


def test_a_stateful_layer_goes_on_where_the_batch_before_ended(rng):
    x = rng.standard_normal((2, 9, 2)).astype(np.float32)
    net = _stateful_net()
    whole = built(LSTM("rnn", 3, num_stacks=2), (9, 2))
    for suffix, param in whole.params.items():
        param.value[...] = net["rnn"].params[suffix].value
    _, want = run(whole, x)
    for _ in range(2):
        parts = [net.forward(False, x[:, t : t + 3]) for t in (0, 3, 6)]
        np.testing.assert_allclose(np.concatenate(parts, 1), want, rtol=1e-5, atol=1e-6)
        net["rnn"].reset_state()
        assert not net["rnn"].params["state/c"].value.any()


def test_stateful_steps_are_the_same_recorded_saved_and_by_layers(rng, tmp_path):
    batches = [rng.standard_normal((2, 3, 2)).astype(np.float32) for _ in range(6)]
    y = np.ones((2, 3, 3), np.float32)
    recorded, by_layers, resumed = _stateful_net(), _stateful_net(False), _stateful_net()
    for k, x in enumerate(batches):
        losses = [net.step(x, y, SGD(lr=0.1))[0] for net in (recorded, by_layers)]
        assert losses[0] == losses[1]
        if k == 3:
            recorded.save(tmp_path / "net.bin")
            resumed.load(tmp_path / "net.bin")
        elif k > 3:
            assert resumed.step(x, y, SGD(lr=0.1))[0] == losses[0]
    assert recorded.programs.notes == []
    state = recorded["rnn"].params["state/h"].value
    assert state.any()
    np.testing.assert_array_equal(state, by_layers["rnn"].params["state/h"].value)


def test_a_stateful_layer_refuses_other_batches_states_and_processes():
    net = _stateful_net()
    with pytest.raises(ShapeError, match="expected batches of 2 samples.*received 3 samples"):
        net.forward(False, np.zeros((3, 3, 2), np.float32))
    with pytest.raises(ShapeError, match="expected no initial states"):
        GRU("rnn", 3, stateful=4).build([(5, 2), (1, 3)])
    with pytest.raises(ArgumentError, match="stateful: expected an int"):
        GRU("rnn", 3, stateful=True)
    with pytest.raises(ArgumentError, match="received the stateful layer 'rnn'"):
        net.predictor()
    with pytest.raises(ArgumentError, match="for several processes"):
        net["rnn"].share(None)


@pytest.mark.parametrize("tells", ["mask", "lengths"])
def test_masks_and_lengths_are_recorded_without_a_python_step(tells, rng):
    x, steps = Input("x", (4, 2)), Input("steps", (4,) if tells == "mask" else ())
    out = GRU("rnn", 2, bidirectional=True)(x, steps)
    net = FeedForwardNet(inputs=[x, steps], outputs=out, loss=SquaredError(), seed=0)
    y = np.ones((3, 4, 4), np.float32)
    for lengths in ([4, 1, 2], [0, 3, 4], [2, 2, 1]):
        given = np.array(lengths)
        if tells == "mask":
            given = np.arange(4) < given[:, None]
        feed = {"x": rng.standard_normal((3, 4, 2)).astype(np.float32), "steps": given}
        twin = copy.deepcopy(net)
        twin.programs.enabled = False
        assert net.step(feed, y, SGD(lr=0.1)) == twin.step(feed, y, SGD(lr=0.1))
        for a, b in zip(net.param_values(), twin.param_values(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert net.programs.notes == []
    if tells == "lengths":
        with pytest.raises(DataError, match="0 to 4, the number of steps; received 5"):
            net.step({**feed, "steps": np.array([1, 5, 2])}, y, SGD(lr=0.1))


@pytest.mark.parametrize("mode", MODES)
def test_unequal_lengths_sorted_or_not_are_the_samples_alone(mode, rng):
    layer = built(RNN("rnn", 3, mode, bidirectional=True, return_state=True), [(None, 2), ()])
    lengths, x = rng.integers(0, 6, 9), rng.standard_normal((9, 5, 2)).astype(np.float32)
    _, together = run(layer, [x, lengths.astype(np.float32)], train=False)
    for s, length in enumerate(lengths):
        _, (y, *finals) = run(layer, [x[s : s + 1, :length], lengths[s : s + 1]], train=False)
        pairs = zip([together[0][:, :length], *together[1:]], [y, *finals], strict=True)
        for got, want in pairs:
            np.testing.assert_allclose(got[s], want[0], rtol=1e-5, atol=1e-6)


def test_no_steps_and_gradients_that_are_arrays_of_their_own(rng):
    layer = built(GRU("rnn", 3, return_state=True), (None, 2))
    ctx, (y, h) = run(layer, rng.standard_normal((2, 0, 2)).astype(np.float32))
    dx, grads = layer.backward(ctx, [y, h])
    assert (y.shape, dx.shape) == ((2, 0, 3), (2, 0, 2))
    assert not any(each.any() for each in (h, *grads.values()))
    layer = built(LSTM("rnn", 3), (4, 2))
    _, grads = layer.backward(*run(layer, rng.standard_normal((2, 4, 2)).astype(np.float32)))
    assert not np.shares_memory(grads["l0/forward/bias_x"], grads["l0/forward/bias_h"])


@pytest.mark.parametrize("mode", MODES)
def test_long_sequences_of_large_values_stay_finite(mode):
    layer = built(RNN("rnn", 4, mode, bidirectional=True), (50, 3))
    for param in layer.params.values() if mode == "relu" else ():
        param.value *= 0.1
    ctx, y = run(layer, np.full((2, 50, 3), 1e4, np.float32))
    dx, grads = layer.backward(ctx, np.ones_like(y))
    assert all(np.isfinite(part).all() for part in (y, dx, *grads.values()))


def test_gradients_of_a_long_run():
    layer = GRU("rnn", 3, num_stacks=2)
    x = np.random.default_rng(1).standard_normal((2, 40, 3))
    assert check_gradients(layer, x)


# -- arguments and shapes ---------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [6, -1, 2.5, float("nan"), float("inf")])
def test_refuses_a_length_that_is_not_there(wrong):
    layer = built(LSTM("rnn", 2), [(5, 3), ()])
    lengths = np.array([5.0, wrong])
    with pytest.raises(DataError, match=r"'rnn', input lengths: .* 0 to 5.*for sample 1; cut"):
        run(layer, [np.zeros((2, 5, 3), np.float32), lengths])


def test_default_start_is_glorot_orthogonal_zero_and_one_for_the_forget_gate():
    layer = built(LSTM("rnn", 30), (None, 20))
    p = {suffix: param.value for suffix, param in layer.params.items()}
    bound = np.sqrt(6 / (20 + 120))
    assert 0.9 * bound < np.abs(p["l0/forward/weight_x"]).max() <= bound
    rows = p["l0/forward/weight_h"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(30), atol=1e-5)
    np.testing.assert_array_equal(p["l0/forward/bias_x"].reshape(4, 30).sum(1), [0, 30, 0, 0])
    assert not p["l0/forward/bias_h"].any()
    gru = built(GRU("rnn", 30), (None, 20))
    assert not gru.params["l0/forward/bias_x"].value.any()


def test_specs_may_stand_for_all_arrays_a_kind_or_one():
    everywhere = {"init": "uniform", "low": -0.08, "high": 0.08, "lr_mult": 2.0}
    for specs in (everywhere, [everywhere]):
        layer = built(LSTM("rnn", 3, param_specs=specs), (4, 2))
        assert all(param.spec.lr_mult == 2.0 for param in layer.params.values())
        assert all(0 < np.abs(v).max() <= 0.08 for v in layer.param_values())
        assert "name" not in everywhere
    given = {"bias_h": {"decay_mult": 0.0}, "l1/forward/bias_h": {"lr_mult": 5.0}}
    layer = built(LSTM("rnn", 3, num_stacks=2, param_specs=given), (4, 2))
    specs = {suffix: param.spec for suffix, param in layer.params.items()}
    assert specs["l0/forward/bias_h"].decay_mult == 0.0
    assert (specs["l1/forward/bias_h"].decay_mult, specs["l1/forward/bias_h"].lr_mult) == (1, 5)
    assert specs["l0/forward/bias_x"].decay_mult == 1.0
    # A name for all is the start of each one's; an array may be another layer's.
    first, name = GRU("rnn", 3, param_specs={"name": "char/weight"}), "l0/forward/weight_h"
    first.build((4, 2))
    assert first.param_names()[0] == "char/weight/l0/forward/weight_x"
    assert len(set(first.param_names())) == 4
    second = built(GRU("two", 3, param_specs={name: first.params[name]}), (9, 7))
    assert second.params[name] is first.params[name]


def test_parameters_have_names_shapes_and_order():
    layer = built(GRU("rnn", 3, num_stacks=2, bidirectional=True), (4, 5))
    ways = [f"l{stack}/{way}" for stack in (0, 1) for way in ("forward", "backward")]
    kinds = ("weight_x", "weight_h", "bias_x", "bias_h")
    assert layer.param_names() == [f"rnn/{way}/{kind}" for way in ways for kind in kinds]
    shapes = [value.shape for value in layer.param_values()]
    assert shapes[:4] == [(5, 9), (3, 9), (9,), (9,)]
    assert shapes[8] == (6, 9)


WRONG_SHAPES = [
    (3,), (), (4, 3, 2), (4, 0),
    [(4, 3), (1, 5)],  # LSTM wants both states
    [(4, 3), (1, 5), (1, 5), (1, 5)], [(4, 3), (1, 4), (1, 5)],
    [(4, 3), (), (1, 5), (1, 5)],  # lengths come last
    [(), (4, 3)], [(4, 3), (2,)], [(4, 3), (4, 3)],
]  # fmt: skip
SIZES = {"units": 3, "num_layers": 1}


@refuses([
    *[(partial(LSTM, "rnn", **{**SIZES, argument: value}), ArgumentError,
       f"argument {argument}: expected")
      for argument in SIZES for value in (0, -2, 1.5, "4", True, None)],
    (lambda: LSTM("rnn", 3, num_stacks=1001), ArgumentError,
     "num_layers: expected an int from 1 to 1000.*1001"),
    *[(partial(GRU, "rnn", 3, **{what: value}), ArgumentError,
       f"{what}: .*probability of dropping.*received")
      for what in ("dropout", "input_dropout", "recurrent_dropout")
      for value in (1.0, -0.1, float("nan"), "0.5", None)],
    (lambda: RNN("rnn", 3, "tan"), UnknownNameError, "did you mean 'tanh'"),
    (lambda: RNN("rnn", 3, input_mode="liner"), UnknownNameError, "did you mean 'linear'"),
    *[(partial(LSTM("rnn", 5).build, shapes), ShapeError, "expected sequences of sample shape")
      for shapes in WRONG_SHAPES],
    (lambda: LSTM("rnn", 4, input_mode="skip").build((5, 3)), ShapeError,
     "expected 4 features, the hidden size.*received 3"),
    (lambda: GRU("rnn", 3, param_specs={"weight_x": {}, "weight_y/": {}}).build((4, 2)),
     UnknownNameError, "did you mean 'weight_x'"),
    (lambda: GRU("rnn", 3, param_specs=[{}, {}]), ArgumentError,
     "param_specs: expected one spec.*list of 2"),
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'rnn'.*{words}")
    if isinstance(make, partial) and error is ShapeError:
        layer = make.func.__self__
        assert (layer.params, layer.out_shapes) == ({}, None)


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
    assert RNN("r", 3).rnn_mode == "lstm"


CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def torch_layer(torch, mode, **options):
    torch.manual_seed(1)
    classes = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    if mode in classes:
        return classes[mode](5, 6, batch_first=True, **options)
    return torch.nn.RNN(5, 6, nonlinearity=mode, batch_first=True, **options)


def in_packed_order(module, value):
    """PyTorch's arrays in cuDNN's order: all matrices of each layer and direction, then biases."""
    named = dict(module.named_parameters())
    ways = [name[len("weight_ih") :] for name in named if name.startswith("weight_ih")]
    order = [f"weight_{side}{way}" for way in ways for side in ("ih", "hh")]
    order += [f"bias_{side}{way}" for way in ways for side in ("ih", "hh")]
    return np.concatenate([value(named[name]).detach().numpy().ravel() for name in order])


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize(("stacks", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("ragged", [False, True])
def test_outputs_and_gradients_equal_pytorch(mode, stacks, bidirectional, ragged):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    rng = np.random.default_rng(7)
    module = torch_layer(torch, mode, num_layers=stacks, bidirectional=bidirectional)
    layer = RNN("rnn", 6, mode, num_stacks=stacks, bidirectional=bidirectional, return_state=True)
    runs, states = stacks * (1 + bidirectional), 2 if mode == "lstm" else 1
    layer.build([(8, 5), *[(runs, 6)] * states, ()])
    layer.unpack(in_packed_order(module, lambda p: p))
    lengths = np.array([4, 8, 1, 6]) if ragged else np.full(4, 8)
    x = rng.standard_normal((4, 8, 5)).astype(np.float32)
    starts = [rng.standard_normal((4, runs, 6)).astype(np.float32) for _ in range(states)]
    ctx, (y, *finals) = run(layer, [x, *starts, lengths])
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dy[np.arange(8) >= lengths[:, None]] = 0
    dfinals = [rng.standard_normal(f.shape).astype(np.float32) for f in finals]
    (dx, *dstarts, _), grads = layer.backward(ctx, [dy, *dfinals])
    tx = torch.tensor(x, requires_grad=True)
    # PyTorch puts the states' batch second.
    tstarts = [torch.tensor(s.transpose(1, 0, 2).copy(), requires_grad=True) for s in starts]
    utils = torch.nn.utils.rnn
    packed = utils.pack_padded_sequence(tx, torch.tensor(lengths), True, enforce_sorted=False)
    ty, tfinals = module(packed, tuple(tstarts) if mode == "lstm" else tstarts[0])
    ty, _ = utils.pad_packed_sequence(ty, True, total_length=8)
    tfinals = tfinals if mode == "lstm" else (tfinals,)
    np.testing.assert_allclose(y, ty.detach().numpy(), **CLOSE)
    for got, want in zip(finals, tfinals, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy().transpose(1, 0, 2), **CLOSE)
    total = (ty * torch.tensor(dy)).sum()
    for final, d in zip(tfinals, dfinals, strict=True):
        total = total + (final.transpose(0, 1) * torch.tensor(d)).sum()
    total.backward()
    np.testing.assert_allclose(dx, tx.grad.numpy(), **CLOSE)
    for got, want in zip(dstarts, tstarts, strict=True):
        np.testing.assert_allclose(got, want.grad.numpy().transpose(1, 0, 2), **CLOSE)
    wanted = in_packed_order(module, lambda p: p.grad)
    # A few hundred terms of either sign go into each: the bound is relative to the largest.
    assert np.abs(layer.pack(grads) - wanted).max() <= 1e-5 * np.abs(wanted).max()


KERAS_GATES = {"LSTM": "ifgo", "GRU": "zrn", "SimpleRNN": "h"}


@pytest.mark.parametrize(("name", "mode"),
                         [("LSTM", "lstm"), ("GRU", "gru"), ("SimpleRNN", "tanh")])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"go_backwards": True, "use_bias": False}])
def test_outputs_under_a_mask_equal_keras(name, mode, options):
    keras = pytest.importorskip("keras", reason="Keras is not installed: the peers extra")
    rng = np.random.default_rng(3)
    theirs = built(getattr(keras.layers, name)(4, return_sequences=True, **options), (None, 6, 3))
    weights = [rng.standard_normal(w.shape).astype(np.float32) for w in theirs.get_weights()]
    theirs.set_weights(weights)
    layer = built(RNN("rnn", 4, mode, **options), [(6, 3), (6,)])
    views = layer.gates()
    biases = np.atleast_2d(weights[2]) if "use_bias" not in options else ()
    for k, gate in enumerate(KERAS_GATES[name]):
        block = slice(4 * k, 4 * k + 4)
        views[f"l0/forward/{gate}/weight_x"][...] = weights[0][:, block]
        views[f"l0/forward/{gate}/weight_h"][...] = weights[1][:, block]
        for kind, bias in zip(("bias_x", "bias_h"), biases, strict=False):
            views[f"l0/forward/{gate}/{kind}"][...] = bias[block]
    x = rng.standard_normal((3, 6, 3)).astype(np.float32)
    mask = np.array([[1] * 6, [0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]], bool)
    _, y = run(layer, [x, mask])
    want = keras.ops.convert_to_numpy(theirs(x, mask=keras.ops.convert_to_tensor(mask)))
    # Keras repeats the last output where a step is missing.
    mask = mask[:, ::-1] if "go_backwards" in options else mask
    np.testing.assert_allclose(y, want * mask[:, :, None], **CLOSE)


def test_two_steps_of_an_lstm_by_hand():
    layer = LSTM("l", 1, input_sample_shape=(2, 1))
    net, gates = FeedForwardNet([layer]), layer.gates()
    for gate, values in {
        "i": (0.5, -0.3, 0.1), "f": (0.2, 0.4, 1.0), "g": (-0.7, 0.6, 0.0), "o": (0.9, 0.1, -0.2),
    }.items():  # fmt: skip
        kinds = ("weight_x", "weight_h", "bias_x", "bias_h")
        for kind, value in zip(kinds, (*values, 0.0), strict=True):
            gates[f"l0/forward/{gate}/{kind}"][...] = value
    y = net.forward(False, np.array([[[1.0], [-2.0]]], np.float32))
    # i, f, g, o = σ(.6), σ(1.2), tanh(-.7), σ(.7); c = i g
    c = 0.6456563062 * -0.6043677771
    h = 0.6681877721 * np.tanh(c)
    np.testing.assert_allclose(y[0, 0, 0], h, rtol=1e-6)
    i, f, o = (
        1 / (1 + np.exp(-z))
        for z in (-1.0 - 0.3 * h + 0.1, -0.4 + 0.4 * h + 1.0, -1.8 + 0.1 * h - 0.2)
    )
    c = f * c + i * np.tanh(1.4 + 0.6 * h)
    np.testing.assert_allclose(y[0, 1, 0], o * np.tanh(c), rtol=1e-5)


def test_gates_of_a_gru():
    layer = GRU("g", 1, input_sample_shape=(1, 1))
    net, gates = FeedForwardNet([layer]), layer.gates()
    for value in gates.values():
        value[...] = 0.0
    # With h = 0 only the bias of n stands behind r = σ(1): n = tanh(σ(1) · 2), z = 1/2.
    gates["l0/forward/r/bias_x"][...] = 1.0
    gates["l0/forward/n/bias_h"][...] = 2.0
    y = net.forward(False, np.zeros((1, 1, 1), np.float32))
    np.testing.assert_allclose(y.item(), 0.5 * np.tanh(0.7310585786 * 2), rtol=1e-6)
    # An open update gate keeps the state.
    layer = GRU("g", 3, return_state=True, input_sample_shape=[(5, 2), (1, 3)])
    net, rng = FeedForwardNet([layer]), np.random.default_rng(0)
    layer.gates()["l0/forward/z/bias_x"][...] = 100.0
    x, h = (rng.standard_normal((2, *shape)).astype(np.float32) for shape in ((5, 2), (1, 3)))
    np.testing.assert_allclose(net.forward(False, [x, h])[1], h, rtol=1e-6)
