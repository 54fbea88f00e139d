"""Nets whose weights are held in bfloat16: predictions, updates, every way of stepping, copies."""

import copy
import gc
import pickle

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import Activation, Conv2D, Dense, Embedding, Flatten, GatedUnit, Input
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops.narrow import NarrowMatrix
from singanet.optimizer import SGD, Adafactor, Adam, ClipByGlobalNorm
from singanet.params.narrow import NarrowWeights

RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 30, (6, 5))
Y = RNG.integers(0, 30, (6, 5))


def net_of(seed=1):
    """A table that is the head, too, a gated unit, and a Dense with a bias."""
    words = Input("words", (5,), "int64")
    table = Embedding("table", 30, 16)
    x = GatedUnit("unit", 24, 16)(table(words))
    x = Activation("tanh", "tanh")(Dense("middle", 16)(x))
    head = Dense("head", 30, use_bias=False, W_specs=table.params["weight"], W_transpose=True)
    return FeedForwardNet(inputs=words, outputs=head(x), loss=SoftmaxCrossEntropy(), seed=seed)


def values(net):
    return {param.name: np.array(param.peek()) for param in net.params()}


def nearest(value):
    bits = value.view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return up.astype(np.uint32).view(np.float32)


def held(net):
    return [param for param in net.params() if isinstance(param.storage, NarrowWeights)]


def test_matrices_are_held_and_the_rest_stays():
    net = net_of()
    before = values(net)
    net.as_type("bfloat16")
    after = values(net)
    assert {p.name for p in held(net)} == {name for name, a in before.items() if a.ndim == 2}
    for name, value in before.items():
        want = nearest(value) if value.ndim == 2 else value
        np.testing.assert_array_equal(after[name], want)
    assert net.dtype == np.float32
    assert net.executor.can.records


def test_predictions_are_those_of_the_rounded_weights():
    net, plain = net_of(), net_of()
    net.as_type("bfloat16")
    for one, other in zip(plain.params(), net.params(), strict=True):
        one.value[...] = other.peek()
    want = plain.forward(False, IDS)
    got = net.forward(False, IDS)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 * np.abs(want).max())
    np.testing.assert_allclose(
        net.predict(IDS[:1]), plain.predict(IDS[:1]), rtol=0, atol=2e-2 * want.max()
    )
    assert not any(isinstance(each, NarrowMatrix) for each in net.param_values())


def linear(rounding=None, seed=0):
    net = FeedForwardNet([Dense("fc", 8, input_sample_shape=(16,))], loss=SquaredError(), seed=seed)
    if rounding:
        net.as_type("bfloat16", rounding)
    return net


X = RNG.standard_normal((32, 16)).astype(np.float32)
T = RNG.standard_normal((32, 8)).astype(np.float32)


def test_with_the_remainder_updates_are_those_of_a_float32_master():
    """Written out: the gradient at the rounded weight moves the weight that is not."""
    net = linear("remainder")
    weight, bias = (np.array(p.peek(), np.float64) for p in net.params())
    rate, rule = 1e-2, SGD(lr=1e-2)
    for _ in range(5):
        seen = nearest(weight.astype(np.float32)).astype(np.float64)
        # The loss is half the mean of the squared distances.
        dy = (X @ seen + bias - T) / T.size
        weight -= rate * (X.T @ dy)
        bias -= rate * dy.sum(0)
        net.step(X, T, rule)
    np.testing.assert_allclose(net.params()[0].peek(), weight, rtol=0, atol=2e-5)
    assert not np.array_equal(net.params()[0].peek(), nearest(net.params()[0].peek()))


def test_small_updates_that_rounding_to_nearest_would_lose_arrive_in_the_mean():
    ends = []
    for seed in range(40):
        net = linear("stochastic", seed)
        net.params()[0].put(np.ones((16, 8), np.float32))
        values = net.params()[0].value
        rule = SGD(lr=1.0)
        net.rng = np.random.default_rng(seed)
        for _ in range(10):
            # A tenth of the distance to the next number that bfloat16 has.
            rule.update(["fc/weight"], [values], [np.full((16, 8), -(2.0**-7) / 10, np.float32)])
            net.params()[0].storage.settle(net.rng)
        ends.append(values.mean())
    assert np.mean(ends) == pytest.approx(1 + 2.0**-7, abs=2.0**-7 * 0.05)
    exact = net.params()[0].peek()
    np.testing.assert_array_equal(exact, nearest(exact))


def stepped(net, how, rule):
    if how == "step":
        net.step(IDS, Y, rule)
    elif how == "loop":
        net.loss.forward(True, net.forward(True, IDS), Y)
        for names, values, grads in net.backward(net.loss.backward()):
            rule.update(names, values, grads)
            del values, grads
    else:
        net.loss.forward(True, net.forward(True, IDS), Y)
        items = [tuple(item) for item in net.backward(net.loss.backward())]
        for names, values, grads in items:
            rule.update(names, values, grads)


@pytest.mark.parametrize("how", ["loop", "late"])
def test_loops_of_ones_own_update_as_a_step_does(how):
    one, other = net_of(), net_of()
    for net in (one, other):
        net.as_type("bfloat16", "remainder")
    rules = SGD(lr=0.5), SGD(lr=0.5)
    before = values(one)
    for _ in range(3):
        stepped(one, "step", rules[0])
        stepped(other, how, rules[1])
        gc.collect()
    for (name, want), got in zip(values(one).items(), values(other).values(), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert not np.array_equal(before[name], want)


@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
@pytest.mark.parametrize("rule", [Adam, Adafactor, SGD])
def test_it_learns_as_in_float32(rule, rounding):
    plain, net = net_of(), net_of()
    net.as_type("bfloat16", rounding)
    losses = []
    for each in (plain, net):
        optimizer = rule(lr=3.0 if rule is SGD else 0.02)
        losses.append([each.step(IDS, Y, optimizer)[0] for _ in range(15)])
    assert losses[0][-1] < losses[0][0] - 0.2
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.04)


def test_clipping_by_the_global_norm_and_accumulation_update_what_is_held():
    for make in (lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),):
        plain, net = net_of(), net_of()
        net.as_type("bfloat16", "remainder")
        for one, other in zip(plain.params(), net.params(), strict=True):
            one.value[...] = other.peek()
        one, two = make(), make()
        for _ in range(2):
            plain.step(IDS, Y, one)
            net.step(IDS, Y, two)
        for want, got in zip(values(plain).values(), values(net).values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-3)
    plain, net = net_of(), net_of()
    net.as_type("bfloat16", "remainder")
    for each in (plain, net):
        each.compile(SGD(lr=0.5))
        each.fit(IDS, Y, batch_size=2, epochs=2, accumulate=3, verbose=False, shuffle=False)
    for want, got in zip(values(plain).values(), values(net).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-2)


@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
def test_a_fit_goes_on_to_the_bit(rounding, tmp_path):
    def begun():
        net = net_of()
        net.as_type("bfloat16", rounding)
        net.compile(Adam(lr=0.01))
        return net

    whole = begun()
    whole.fit(IDS, Y, batch_size=2, epochs=3, verbose=False)
    first = begun()
    saved = singanet.training.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.npz"))
    first.fit(IDS, Y, batch_size=2, epochs=2, verbose=False, callbacks=[saved])
    last = sorted(tmp_path.iterdir())[-1]
    again = begun()
    again.fit(IDS, Y, batch_size=2, epochs=3, verbose=False, resume=last, callbacks=[saved])
    for want, got in zip(values(whole).values(), values(again).values(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pickle", ".hdf5", ".bin"])
@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
def test_files_have_the_same_bits(suffix, rounding, tmp_path):
    net, other = net_of(), net_of(5)
    for each in (net, other):
        each.as_type("bfloat16", rounding)
    net.step(IDS, Y, SGD(lr=0.3))
    net.save(tmp_path / f"file{suffix}")
    other.load(tmp_path / f"file{suffix}")
    for want, got in zip(values(net).values(), values(other).values(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_copies_hold_as_much():
    net = net_of()
    net.as_type("bfloat16")
    want = net.forward(False, IDS)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [p.name for p in held(made)] == [p.name for p in held(net)]
        assert [p.storage.nbytes for p in held(made)] == [p.storage.nbytes for p in held(net)]
        np.testing.assert_allclose(made.forward(False, IDS), want, atol=1e-2)
        made.step(IDS, Y, SGD(lr=0.1))
    np.testing.assert_array_equal(net.forward(False, IDS), want)


def test_back_to_float32_all_is_as_in_any_net():
    net = net_of()
    net.as_type("bfloat16")
    kept = values(net)
    net.as_type("float32")
    assert net.executor.can.records
    assert not held(net)
    for want, param in zip(kept.values(), net.params(), strict=True):
        np.testing.assert_array_equal(param.value, want)
    net.step(IDS, Y, SGD(lr=0.1))
    net.as_type("bfloat16")
    net.as_type("float64")
    assert all(param.value.dtype == np.float64 for param in net.params())
    net.as_type("bfloat16")
    assert held(net)
    assert net.dtype == np.float32


def test_pairs_are_trained_beside_what_is_held_and_merged_into_it():
    net = net_of()
    net.as_type("bfloat16")
    kept = values(net)
    names = net.adapt(2, "all")
    assert names == ["unit/gate_weight", "unit/up_weight", "unit/down_weight", "middle/weight"]
    losses = [net.step(IDS, Y, Adam(lr=0.05))[0] for _ in range(8)]
    assert losses[-1] < losses[0]
    now = values(net)
    assert all(np.array_equal(now[name], kept[name]) for name in kept)
    apart = net.forward(False, IDS)
    net.merge()
    np.testing.assert_allclose(net.forward(False, IDS), apart, atol=3e-2 * np.abs(apart).max())


def test_convolutions_stay_and_the_head_is_held():
    net = FeedForwardNet(
        [Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)), Flatten("flat"), Dense("fc", 3)],
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )
    x = RNG.standard_normal((4, 2, 6, 6)).astype(np.float32)
    net.as_type("bfloat16")
    assert [p.name for p in held(net)] == ["fc/weight"]
    assert np.isfinite(net.step(x, np.array([0, 1, 2, 0]), SGD(lr=0.1))[0])


class Doubled(Dense):
    """A layer of the user's own, which reads its weight as an array."""

    def forward(self, ctx, x):
        ctx.save(x=x)
        assert type(ctx.params["weight"]) is np.ndarray
        return x @ (2 * ctx.params["weight"]) + ctx.params["bias"]


def test_a_layer_of_ones_own_reads_arrays():
    net = FeedForwardNet([Doubled("fc", 3, input_sample_shape=(4,))], seed=0)
    net.as_type("bfloat16")
    x = np.ones((2, 4), np.float32)
    weight, bias = (param.peek() for param in net.params())
    np.testing.assert_allclose(net.forward(False, x), x @ (2 * weight) + bias, rtol=1e-6)


def test_what_knows_arrays_alone_is_refused_with_the_way_back(tmp_path):
    net = net_of()
    net.as_type("bfloat16")
    net.compile(SGD(lr=0.1))
    calls = [
        lambda: net.offload(tmp_path / "a"),
        lambda: net.fit(IDS, Y, memory_budget="1GB", offload_folder=tmp_path / "a"),
    ]
    for call in calls:
        with pytest.raises(CallOrderError, match=r"call net\.as_type\('float32'\) first"):
            call()
    with pytest.raises(ArgumentError, match="'stochastic', 'remainder'"):
        net_of().as_type("bfloat16", "up")
    with pytest.raises(ArgumentError, match="None, but with 'bfloat16'"):
        net_of().as_type("float32", "remainder")
    offloaded = net_of()
    offloaded.offload(tmp_path / "b")
    with pytest.raises(CallOrderError, match="is offloaded"):
        offloaded.as_type("bfloat16")


def test_a_predictor_has_the_weights_that_are_held():
    net = net_of()
    net.as_type("bfloat16")
    got, want = net.predictor()(IDS), net.predict(IDS)
    np.testing.assert_allclose(got, want, atol=2e-2 * want.max())


RULES = {
    "SGD": lambda: SGD(lr=0.3, momentum=0.5),
    "Adam": lambda: Adam(lr=0.01),
    "Adafactor": lambda: Adafactor(lr=0.01),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),
    "user's": lambda: Halved(lr=0.3),
}


class Halved(SGD):
    """A rule of the user's own, which runs as Python."""

    def update(self, names, values, grads, scale=1.0):
        super().update(names, values, grads, 0.5 * scale)


@pytest.mark.few(3)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
@pytest.mark.parametrize("rule", RULES)
def test_recorded_steps_have_the_bits_of_the_layers(rule, rounding, recompute):
    nets = net_of(), net_of()
    losses = []
    for net, recorded in zip(nets, (False, True), strict=True):
        net.as_type("bfloat16", rounding)
        net.programs.enabled, net.programs.recompute = recorded, recompute
        optimizer = RULES[rule]()
        losses.append([net.step(IDS, Y, optimizer)[0] for _ in range(4)])
    assert losses[0] == losses[1]
    for want, got in zip(values(nets[0]).values(), values(nets[1]).values(), strict=True):
        np.testing.assert_array_equal(got, want)
    assert nets[1].programs.reports()
    # A first step that holds all gradients asks for passes of a caller's.
    assert not nets[1].programs.refusals or rule == "clipped"


def test_recorded_predictions_read_what_is_held_then():
    net, plain = net_of(), net_of()
    for each in (net, plain):
        each.as_type("bfloat16")
    plain.programs.enabled = False
    for factor in (1.0, 2.0):
        for each in (net, plain):
            lent = each["middle"].params["weight"].value
            lent *= factor
            del lent
        for _ in range(3):
            np.testing.assert_array_equal(net.predict(IDS), plain.predict(IDS))
    assert net.programs.reports()
    net.as_type("float32")
    np.testing.assert_allclose(net.predict(IDS), plain.predict(IDS), atol=1e-2)


def test_blocks_are_recorded_beneath_pairs():
    nets = net_of(), net_of()
    for net, recorded in zip(nets, (False, True), strict=True):
        net.quantize("int4")
        net.adapt(2, "all")
        net.programs.enabled = recorded
        rule = Adam(lr=0.05)
        losses = [net.step(IDS, Y, rule)[0] for _ in range(4)]
        assert losses[-1] < losses[0]
    for want, got in zip(values(nets[0]).values(), values(nets[1]).values(), strict=True):
        np.testing.assert_array_equal(got, want)
    assert nets[1].programs.reports()
    assert not nets[1].programs.refusals


def test_the_memory_of_a_step_counts_what_is_held():
    plain, net = net_of(), net_of()
    net.as_type("bfloat16")
    wide, narrow = (each.memory(6, SGD(lr=0.1)).parts for each in (plain, net))
    assert wide["parameters"] == 4 * sum(value.size for value in values(plain).values())
    assert narrow["parameters"] == sum(param.storage.nbytes for param in net.params())
    # The largest of the arrays that updates are lent, and what rounding it takes meanwhile.
    lent = 4 * max(param.value.size for param in held(net))
    rounding = max(param.storage.rounding_bytes for param in held(net))
    assert narrow["other"] == wide["other"] + lent + rounding


@pytest.mark.parametrize("rounding", ["stochastic", "remainder"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_model_file_holds_what_was_held(rounding, trained, tmp_path):
    net = net_of()
    plain = tmp_path / "plain.singanet"
    net.save_model(plain)
    net.as_type("bfloat16", rounding)
    net.compile(SGD(lr=0.1))
    if trained:
        net.step(IDS, Y, SGD(lr=0.3))
    path, weights = tmp_path / "net.singanet", tmp_path / "net.safetensors"
    net.save_model(path)
    net.save(weights)
    made = singanet.load_model(path)
    assert [p.name for p in held(made)] == [p.name for p in held(net)]
    assert [p.storage.nbytes for p in held(made)] == [p.storage.nbytes for p in held(net)]
    assert {p.storage.rounding for p in held(made)} == {rounding}
    other = net_of(9)
    other.load(weights)
    for each in (made, other):
        for want, got in zip(values(net).values(), values(each).values(), strict=True):
            np.testing.assert_array_equal(got, want)
    if rounding == "stochastic":
        narrow = 2 * sum(param.value.size for param in held(net))
        assert path.stat().st_size < plain.stat().st_size - 0.9 * narrow
        with open_state(weights) as reader:
            assert reader.entries["middle/weight"].kind == "BF16"
    # Training goes on as that of the net that was saved.
    losses = [each.step(IDS, Y, SGD(lr=0.1))[0] for each in (net, made)]
    assert losses[0] == losses[1]
