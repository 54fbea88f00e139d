"""Nets in blocks of 8 and 4 bits: what they predict, what it cost, and pairs beside them."""

import copy
import pickle
from math import exp

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import layers as nn
from singanet.errors import ArgumentError, CallOrderError, SingaNetError
from singanet.layers import Activation, BatchNormalization, Dense, Embedding, GatedUnit, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops.onednn import products
from singanet.optimizer import SGD, Adam
from singanet.training import evaluation
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint
from tests.kit.callbacks import at
from tests.kit.nets import values_of

RNG = np.random.default_rng(4)
IDS = RNG.integers(0, 50, (6, 5))
Y = RNG.integers(0, 50, (6, 5))


def net_of(seed=1):
    words = Input("words", (5,), "int64")
    x = GatedUnit("unit", 96, 64)(Embedding("table", 50, 64)(words))
    top = Dense("head", 50)(Activation("tanh", "tanh")(Dense("middle", 40)(x)))
    return FeedForwardNet(inputs=words, outputs=top, loss=SoftmaxCrossEntropy(), seed=seed)


def by_formula(weight, dtype):
    """Blocks of 32 inputs: the step max / 127, or a fifteenth of the range above the minimum."""
    by_output = weight.T.reshape(weight.shape[1], -1, 32).astype(np.float64)
    if dtype == "int8":
        step = np.abs(by_output).max(2, keepdims=True) / 127
        made = np.rint(by_output / step) * step.astype(np.float16)
    else:
        least = by_output.min(2, keepdims=True)
        step = (by_output.max(2, keepdims=True) - least) / 15
        made = np.floor((by_output - least) / step + 0.5) * step.astype(np.float16)
        made += least.astype(np.float16)
    return made.reshape(weight.shape[::-1]).T


def expect_in_steps(values):
    """Each block of 32 inputs has 16 values at most, a step apart."""
    for block in values.T.reshape(-1, 32).astype(np.float64):
        steps = np.diff(np.unique(block))
        assert len(steps) < 16
        whole = steps / steps.min()
        np.testing.assert_allclose(whole, np.rint(whole), atol=0.05)


@pytest.mark.parametrize(("dtype", "size"), [("int8", 34 / 32), ("int4", 20 / 32)])
def test_weights_are_blocks_and_the_report_says_how_far_off(dtype, size):
    net = net_of()
    before = {p.name: p.value.copy() for p in net.params()}
    told = net.quantize(dtype)
    held = {p.name for p in net.params() if not p.storage.in_memory}
    # The head has 40 inputs, no multiple of 32.
    assert held == {f"unit/{part}_weight" for part in ("gate", "up", "down")} | {
        "table/weight",
        "middle/weight",
    }
    assert set(told.errors) == held
    for param in net.params():
        value = before[param.name]
        if param.name not in held:
            np.testing.assert_array_equal(param.value, value)
            continue
        # Tables are of 8 bits in each case.
        is_table = param.name == "table/weight"
        wanted = by_formula(value.T, "int8").T if is_table else by_formula(value, dtype)
        if is_table or dtype == "int8":
            np.testing.assert_allclose(param.peek(), wanted, atol=2e-4)
        else:
            expect_in_steps(param.peek())
            far = np.linalg.norm(wanted - value)
            assert 0.5 * far < np.linalg.norm(param.peek() - value) < 0.98 * far
        off = np.linalg.norm(value - param.peek()) / np.linalg.norm(value)
        assert told.errors[param.name] == pytest.approx(off, rel=1e-4)
        # Panels of 64 outputs, and groups of 64 inputs.
        inputs, outputs = param.shape[::-1] if is_table else param.shape
        padded = -(-inputs // 64) * 64 * -(-outputs // 64) * 64
        assert param.storage.nbytes == padded * (34 / 32 if is_table else size)
    whole = sum(value.nbytes for value in before.values())
    assert told.nbytes == (whole, sum(param.storage.nbytes for param in net.params()))
    assert told.losses is None
    assert max(told.errors.values()) < {"int8": 0.006, "int4": 0.08}[dtype]
    assert f"5 weights in {dtype}" in str(told)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_predictions_are_those_of_the_blocks_and_the_loss_is_told(dtype):
    net, plain = net_of(), net_of()
    first = net.evaluate(IDS, Y).loss
    told = net.quantize(dtype, IDS, Y, batch_size=2)
    for one, other in zip(plain.params(), net.params(), strict=True):
        one.value[...] = other.peek()
    want = plain.forward(False, IDS)
    bound = 2e-2 * np.abs(want).max()
    np.testing.assert_allclose(net.forward(False, IDS), want, rtol=0, atol=bound)
    np.testing.assert_allclose(net.forward(False, IDS[:1]), want[:1], rtol=0, atol=bound)
    last = plain.evaluate(IDS, Y).loss
    assert told.losses == pytest.approx((first, last), rel=1e-3)
    assert told.perplexities == pytest.approx((exp(first), exp(last)), rel=4e-3)
    assert "perplexity" in str(told)


def test_rows_that_are_known_make_predictions_of_their_kind_nearer():
    ids = np.random.default_rng(1).integers(0, 50, (40, 5))
    far = []
    for data in (None, ids[:24]):
        net = net_of()
        want = net.forward(False, ids[24:])
        told = net.quantize("int4", data=data)
        far.append(np.linalg.norm(net.forward(False, ids[24:]) - want))
        # Watching has left nothing behind.
        held = {p.name for p in net.params() if not p.storage.in_memory}
        assert set(told.errors) == held
        assert len(held) == 5
    assert far[1] < 0.9 * far[0]


@pytest.mark.parametrize("budget", [1, 64 * 64 * 4, 1 << 28])
def test_matrices_are_watched_some_at_a_time(budget, monkeypatch):
    whole, parts = net_of(), net_of()
    whole.quantize("int4", data=IDS)
    monkeypatch.setattr(evaluation, "_MOMENTS", budget)
    parts.quantize("int4", data=IDS)
    # Those that come later see what the earlier ones make in 4 bits.
    first = "unit/gate_weight"
    one, other = ({p.name: p.peek() for p in net.params()} for net in (whole, parts))
    np.testing.assert_array_equal(one[first], other[first])
    assert one.keys() == other.keys()


def test_rows_come_as_to_predict_whatever_holds_the_weights():
    wanted = None
    ways = (IDS, {"words": IDS}, (part for part in np.split(IDS, 2)), [(IDS[:4], 0), (IDS[4:], 0)])
    for data in ways:
        net = net_of()
        told = net.quantize("int4", data=data, batch_size=3)
        wanted = wanted or told.errors
        assert told.errors == pytest.approx(wanted, rel=0.01)
    net = net_of()
    net.as_type("bfloat16")
    assert net.quantize("int4", data=IDS).errors == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_what_is_in_blocks_already_stays_as_it_is(kind):
    net = net_of()
    net.quantize(kind)
    made = {param.name: param.peek().copy() for param in net.params()}
    data = IDS if kind == "int4" else None
    assert set(net.quantize(kind, data=data).errors.values()) == {0.0}
    for param in net.params():
        np.testing.assert_array_equal(param.peek(), made[param.name])


class Scaled(nn.Layer):
    """A user's layer: from 1e20 on the squares of its outputs are beyond float32."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x * np.float32(1e30)

    def backward(self, ctx, dy):
        return dy, {}


def test_moments_beyond_the_numbers_leave_blocks_by_the_weights_alone():
    x = Input("x", (32,))
    y = Dense("b", 4)(Scaled("far")(Dense("a", 32)(x)))
    net = FeedForwardNet(inputs=x, outputs=y, seed=0)
    nets = [net, copy.deepcopy(net)]
    rows = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    nets[0].quantize("int4", data=rows)
    nets[1].quantize("int4")
    values = [{param.name: param.peek() for param in net.params()} for net in nets]
    np.testing.assert_array_equal(values[0]["b/weight"], values[1]["b/weight"])


@pytest.mark.parametrize(("dtype", "rows", "words"), [
    ("int4", np.zeros((0, 5), int), "at least one|finite"), ("int4", np.zeros((4, 9, 2)), "words"),
    ("int8", IDS, "int4"), ("int4", np.full((3, 32), np.nan, np.float32), "finite"),
])  # fmt: skip
def test_rows_that_are_refused_leave_the_net_as_it_was(dtype, rows, words):
    plain = words == "finite"
    net = FeedForwardNet([Dense("a", 32, input_sample_shape=(32,))], seed=0) if plain else net_of()
    before = values_of(net)
    with pytest.raises(SingaNetError, match=words):
        net.quantize(dtype, data=rows)
    assert all(param.storage.in_memory for param in net.params())
    expect_same(before, values_of(net))
    if not plain:
        net.step(IDS, Y, SGD(lr=0.1))


def test_training_is_refused_with_what_to_do_and_nothing_changes(tmp_path):
    net = net_of()
    net.quantize("int8")
    want = net.forward(False, IDS)
    net_of(3).save(tmp_path / "other.npz")
    for call in (lambda: net.step(IDS, Y, SGD(lr=1.0)), lambda: net.forward(True, IDS),
                 lambda: net.train(IDS, Y)):  # fmt: skip
        with pytest.raises(CallOrderError, match=r"cannot be updated.*net\.adapt\(lora=8\)"):
            call()
    with pytest.raises(CallOrderError, match=r"read-only array.*as_type"):
        net.load(tmp_path / "other.npz")
    with pytest.raises(ArgumentError, match="'int8', 'int4'; received 'int2'"):
        net.quantize("int2")
    bare = FeedForwardNet([Dense("fc", 3, input_sample_shape=(64,))])
    with pytest.raises(CallOrderError, match="a net with a loss"):
        bare.quantize("int8", np.zeros((2, 64), np.float32), np.zeros((2, 3)))
    np.testing.assert_array_equal(net.forward(False, IDS), want)


def test_pairs_beside_blocks_are_trained():
    net = net_of()
    net.quantize("int4")
    kept = {p.name: p.peek() for p in net.params()}
    net.adapt(4, ["unit", "middle"])
    rule = Adam(lr=0.02)
    losses = [net.step(IDS, Y, rule)[0] for _ in range(10)]
    assert losses[-1] < losses[0] - 0.1
    now = {p.name: p.peek() for p in net.params()}
    assert all(np.array_equal(now[name], kept[name]) for name in kept)
    with pytest.raises(ArgumentError, match="its array is read-only"):
        net.merge()
    apart = net.forward(False, IDS)
    net.as_type("float32")
    net.merge()
    np.testing.assert_allclose(net.forward(False, IDS), apart, atol=2e-3)


def test_the_gradients_of_pairs_are_those_beside_the_widened_weights(monkeypatch):
    # As on a processor that multiplies numbers of bfloat16 no faster, and so does not round to it.
    monkeypatch.setattr(products, "_WIDENED_GAIN", 0)
    one = net_of()
    one.quantize("int4")
    other = copy.deepcopy(one)
    other.as_type("float32")
    for net in (one, other):
        net.adapt(4, ["unit", "middle"])
        for k, param in enumerate(net.params()):
            if param.name.endswith("lora_b"):
                param.value[...] = np.random.default_rng(k).standard_normal(param.shape)
    got, want = one.train(IDS, Y)[0], other.train(IDS, Y)[0]
    for mine, theirs in zip(got, want, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_copies_and_the_way_back():
    net = net_of()
    net.quantize("int8")
    want, kept = net.forward(False, IDS), [p.peek() for p in net.params()]
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(made.forward(False, IDS), want)
        assert [p.storage.nbytes for p in made.params()] == [p.storage.nbytes for p in net.params()]
    net.as_type("bfloat16")
    for param, value in zip(net.params(), kept, strict=True):
        np.testing.assert_allclose(param.peek(), value, rtol=2.0**-8)
    assert np.isfinite(net.step(IDS, Y, SGD(lr=0.1))[0])
    net.quantize("int4")
    net.as_type("float32")
    assert net.executor.can.records


@pytest.fixture(params=["int8", "int4"])
def net_beside(request):
    """Makes the net: matrices in blocks, and pairs beside them; ``values`` differ by the seed."""

    def make(seed=0):
        first, norm = Dense("a", 64, input_sample_shape=(64,)), BatchNormalization("n")
        layers = [first, norm, Activation("r", "relu"), Dense("b", 4)]
        net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=seed)
        net.quantize(request.param)
        net.adapt(lora=4, where="all")
        net.compile(Adam(lr=0.01))
        return net

    return make


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((32, 64)).astype(np.float32), rng.integers(0, 4, 32)


def fitted(net, epochs=1, **options):
    return net.fit(*data(), batch_size=8, epochs=epochs, verbose=False, **options)["loss"]


def expect_same(one, two):
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value, err_msg=name, strict=True)


def test_a_test_of_rates_puts_all_back(net_beside):
    net = net_beside()
    fitted(net)
    before = values_of(net)
    net.find_lr(*data(), batch_size=8, low=1e-4, high=1.0, steps=12)
    expect_same(before, values_of(net))


@pytest.mark.parametrize("more", [list, lambda: [EMA(0.5)], lambda: [EarlyStopping("loss")]])
def test_a_training_goes_on_from_a_checkpoint(net_beside, more, tmp_path):
    whole, first, second = (net_beside() for _ in range(3))
    losses = fitted(whole, 4, callbacks=more())
    fitted(first, 2, callbacks=[*more(), ModelCheckpoint(tmp_path)])
    got = fitted(second, 4, callbacks=[*more(), ModelCheckpoint(tmp_path)], resume=tmp_path)
    assert got == losses
    expect_same(values_of(whole), values_of(second))


def test_the_best_epoch_comes_back(net_beside):
    net, seen = net_beside(), []
    look = at("on_epoch_end", lambda session, epoch, logs:
              seen.append((logs["loss"], values_of(session.net))))  # fmt: skip
    net.compiled.optimizer.lr = lambda step: 0.01 if step < 8 else 3.0
    fitted(net, 5, callbacks=[look, EarlyStopping("loss", patience=9)])
    losses = [loss for loss, _ in seen]
    assert losses.index(min(losses)) < 4
    expect_same(min(seen, key=lambda each: each[0])[1], values_of(net))


def test_averages_are_of_what_changes(net_beside):
    net, ema = net_beside(), EMA(0.5, keep_at_end=False)
    fitted(net, 2, callbacks=[ema])
    own, x = values_of(net), np.ones((2, 64), np.float32)
    with ema.applied(net):
        expect_same({**own, **ema.averages}, values_of(net))
        lent = net.predict(x)
    expect_same(own, values_of(net))
    again, kept = net_beside(), EMA(0.5)
    fitted(again, 2, callbacks=[kept])
    expect_same({**own, **ema.averages}, values_of(again))
    np.testing.assert_array_equal(again.predict(x), lent)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".h5"])
def test_a_file_is_loaded_where_the_blocks_are_the_same(net_beside, suffix, tmp_path):
    net, path = net_beside(), tmp_path / f"m{suffix}"
    fitted(net)
    net.save(path)
    made, other = net_beside(), net_beside(seed=1)
    assert made.load(path).complete
    expect_same(values_of(net), values_of(made))
    before = values_of(other)
    with pytest.raises(SingaNetError, match="read-only"):
        other.load(path)
    expect_same(before, values_of(other))
