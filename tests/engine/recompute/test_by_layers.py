"""Passes by the layers that run forwards again: the same bits, fewer bytes, and what is refused."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import Input
from singanet import layers as nn
from singanet.errors import ArgumentError
from singanet.layers import LSTM, Activation, Add, BatchNormalization, Conv2D, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD
from tests.program.twins import Twins, expect_items_same
from tests.program.user_parts import Alike, Counts, Draws, Follows, Gain, PureGain

LEVELS = ("cheap", "blocks", "sqrt", "optimal", 1 << 20)


class PureFollows(Follows):
    """A running mean that is declared as state, by a class that says it may run twice."""

    pure = True


class Noisy(Alike):
    """Noise of the net's generator."""

    pure = True

    def forward(self, ctx, x):
        return x + ctx.ops.uniform(ctx.rng, x.shape) if ctx.train else x

    def backward(self, ctx, dy):
        return dy, {}


class Grows(Alike):
    """Keeps a list of what it has seen."""

    def __init__(self, name, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.sums = []

    def forward(self, ctx, x):
        self.sums.append(float(np.sum(x)))
        return x

    def backward(self, ctx, dy):
        return dy, {}


def sgd():
    return SGD(lr=0.05, momentum=0.9)


KINDS = {
    "dense": lambda name: Dense(name, 6), "norm": BatchNormalization, "relu": Activation,
    "tanh": lambda name: Activation(name, "tanh"), "drop": lambda name: Dropout(name, 0.4),
    "gain": lambda name: Gain(name, 1.5), "pure gain": lambda name: PureGain(name, 0.5),
    "follows": PureFollows, "noisy": Noisy
}  # fmt: skip


def net_of(kinds, wishes=(), seed=1):
    """Layers one after the other, each third one with what came three before added."""
    x = Input("x", (6,))
    outs = [x]
    for k, kind in enumerate(kinds):
        layer = KINDS[kind](f"l{k}")
        if k < len(wishes):
            layer.recompute = wishes[k]
        made = layer(outs[-1])
        outs.append(Add(f"a{k}")([made, outs[-3]]) if k % 3 == 2 else made)
    y = Dense("top", 4)(outs[-1])
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=seed)


def layer_of(net, name):
    return next(layer for layer in net.layers if layer.name == name)


def batch(seed, count=7):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6)).astype(np.float32), rng.integers(0, 4, count)


def twins_at(make, level, recorded=False):
    twins = Twins(make, sgd)
    twins.recorded.programs.enabled = recorded
    twins.recorded.programs.recompute = level
    return twins


chains = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=9)


@settings(max_examples=25, deadline=None)
@given(
    chains, st.sampled_from(("none", *LEVELS)),
    st.lists(st.sampled_from((None, None, True, False)), max_size=9), st.booleans()
)  # fmt: skip
def test_any_net_has_the_same_bits(kinds, level, wishes, recorded):
    twins = twins_at(lambda: net_of(kinds, wishes), level, recorded)
    twins.nets[1].programs.recompute = "none"
    for layer in twins.nets[1].layers:
        layer.recompute = None
    for k in range(3):
        twins.step(*batch(k))


@settings(max_examples=12, deadline=None)
@given(chains, st.sampled_from(LEVELS))
def test_loops_of_the_caller_have_the_same_bits(kinds, level):
    twins = twins_at(lambda: net_of(kinds), level)
    for k in range(3):
        twins.forward(True, batch(k)[0])
        for net in twins.nets:
            for value in net.param_values():
                value *= np.float32(1.25)
        dy = np.random.default_rng(k).standard_normal((7, 4)).astype(np.float32)
        walks = [net.backward(dy) for net in twins.nets]
        for one, two in zip(*walks, strict=True):
            expect_items_same(one, two)
            for optimizer, item in zip(twins.optimizers, (one, two), strict=True):
                optimizer.update(*item)
        twins.expect_equal()


@pytest.mark.parametrize("level", LEVELS[1:4])
def test_recurrent_layers_run_again_by_the_kernels_of_training(level):

    def make():
        x = Input("x", (3, 4))
        low = Activation("low", "tanh")(LSTM("a", 4, return_sequences=True)(x))
        top = Dense("top", 3)(LSTM("b", 4, return_sequences=False)(low))
        return singanet.FeedForwardNet(SquaredError(), inputs=x, outputs=top, seed=5)

    twins, rng = twins_at(make, level), np.random.default_rng(0)
    for _ in range(3):
        twins.forward(True, rng.standard_normal((8, 3, 4), np.float32))
        twins.walk(rng.standard_normal((8, 3), np.float32))


@pytest.mark.parametrize("level", LEVELS[1:4])
def test_a_parameter_that_is_another_array_by_the_walk_and_what_views_it(level):
    def make():
        x = Input("x", (4,))
        weight = nn.Weight("weight", (2, 3), W_specs={"init": "gaussian", "mean": 0.0, "std": 1.0})(
            x
        )
        h = Dense("middle", 4)(nn.Flatten("flat")(weight))
        top = Dense("top", 3)(Add("sum")(h, x))
        return singanet.FeedForwardNet(SquaredError(), inputs=x, outputs=top, seed=5)

    twins, rng = twins_at(make, level, recorded=False), np.random.default_rng(0)
    for _ in range(3):
        twins.forward(True, rng.standard_normal((8, 4), np.float32))
        for net in twins.nets:
            param = net["weight"].params["weight"]
            param.value = param.value * np.float32(0.5)
        twins.walk(rng.standard_normal((8, 3), np.float32))


def images(blocks=6):
    x = Input("x", (8, 16, 16))
    h = x
    for k in range(blocks):
        y = BatchNormalization(f"norm{k}")(Conv2D(f"conv{k}", 8, 3)(h))
        h = Add(f"sum{k}")([Activation(f"relu{k}")(y), h])
    y = Dense("top", 4)(nn.Flatten("flat")(h))
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=1)


@pytest.mark.parametrize("level", LEVELS[:4])
def test_a_step_by_the_layers_takes_less(level):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 8, 16, 16)).astype(np.float32), rng.integers(0, 4, 16)
    peaks = []
    for chosen in ("none", level):
        net, optimizer = images(), sgd()
        net.programs.enabled = False
        net.programs.recompute = chosen
        for _ in range(2):
            net.step(x, y, optimizer)
        tracemalloc.start()
        net.step(x, y, optimizer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < (0.9 if level == "cheap" else 0.75) * peaks[0]


def test_bytes_are_kept_before_it_is_known_what_layers_hold(monkeypatch):
    """The first pass had no account of arrays that contexts hold alone, and dropped nothing."""
    net = images()
    counted, run = [], Activation.forward
    monkeypatch.setattr(
        Activation,
        "forward",
        lambda layer, ctx, x: counted.append(layer.name) or run(layer, ctx, x),
    )
    net.programs.enabled, net.programs.recompute = False, 1 << 40
    x, y = np.zeros((2, 8, 16, 16), np.float32), np.zeros(2, int)
    again = []
    for _ in range(2):
        counted.clear()
        net.step(x, y, sgd())
        again.append(len(counted) - len(set(counted)))
    assert again[0] > 0
    assert again[1] == 0


def test_forced_layers_run_again_at_any_level_and_excluded_ones_never():
    net, (x, y) = net_of(["dense", "tanh", "norm", "relu"]), batch(0)
    assert net.record(x, y, sgd()).report().recomputed_kernels == 0
    layer_of(net, "l1").recompute = True
    decisions = net.record(x, y, sgd()).report().recomputed
    told = {one.layer: one for one in decisions if one.runs}
    # Of tanh the output waits; in its place that of the layer before it, which is as large.
    assert set(told) == {"l1"}
    assert told["l1"].why == "layer.recompute is True"
    assert told["l1"].released == told["l1"].added > 0
    assert "l1" in str(decisions)
    for layer in net.layers:
        layer.recompute = False
    assert net.record(x, y, sgd(), recompute="optimal").report().recomputed_kernels == 0


def test_the_guard_sees_the_attribute():
    twins = Twins(lambda: net_of(["dense", "tanh", "drop", "dense"]), sgd)
    for flag in (None, True, False):
        for net in twins.nets:
            layer_of(net, "l1").recompute = flag
        for k in range(12):
            twins.step(*batch(k))
        again = twins.recorded.programs.reports()[-1].recomputed_kernels
        assert bool(again) == (flag is True)


def test_the_attribute_is_kept_in_configs():
    net = net_of(["dense", "tanh"], [True, False])
    made = singanet.FeedForwardNet.from_config(net.to_config())
    assert [layer.recompute for layer in made.layers] == [layer.recompute for layer in net.layers]
    config = net_of(["dense"]).to_config()
    assert not {"recomputed", "kept"} & config.keys()
    for wishes in (["nobody"], [3], {"l0": True}):
        with pytest.raises(singanet.errors.ConfigError):
            singanet.FeedForwardNet.from_config({**config, "recomputed": wishes})


@pytest.mark.parametrize("flag", ["yes", 1, 0.5, "cheap"])
def test_another_wish_is_refused(flag):
    with pytest.raises(ArgumentError, match="'d', recompute: expected True, False or None"):
        Dense("d", 3).recompute = flag


class WritesGlobal(Alike):
    """Draws from NumPy's common generator."""

    def forward(self, ctx, x):
        return x + np.float32(np.random.rand())

    def backward(self, ctx, dy):
        return dy, {}


@pytest.mark.parametrize(("kind", "what"), [
    (Counts, "the parameter 'count', which is no state"), (Draws, "the attribute 'calls'"),
    (Grows, "the attribute 'sums'"), (WritesGlobal, "a shared generator")
])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True])
def test_a_forced_layer_with_side_effects_is_refused(kind, what, recorded):
    x = Input("x", (6,))
    user: nn.Layer = kind("user")
    user.recompute = True
    y = Dense("top", 4)(user(BatchNormalization("norm")(Dropout("drop", 0.5)(x))))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=1)
    net.programs.enabled = recorded
    before = [value.copy() for value in net.param_values()]
    draws = net.rng.bit_generator.state
    for _ in range(2):
        with pytest.raises(
            ArgumentError, match=f"'user', recompute=True: .* changes {what}|{what}"
        ):
            net.step(*batch(0), sgd())
    assert net.rng.bit_generator.state == draws
    for old, value in zip(before, net.param_values(), strict=True):
        np.testing.assert_array_equal(old, value)
    user.recompute = None
    net.step(*batch(0), sgd())


def test_a_forced_layer_of_the_users_that_only_computes_runs_again():
    calls = []

    class Told(Follows):
        def forward(self, ctx, x):
            calls.append(self)
            return super().forward(ctx, x)

    def make():
        x = Input("x", (6,))
        y = Dense("top", 4)(Told("user")(Dropout("drop", 0.5)(x)))
        return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=1)

    twins = Twins(make, sgd)
    mine = layer_of(twins.recorded, "user")
    mine.recompute = True
    for k in range(3):
        twins.step(*batch(k))
    assert sum(layer is mine for layer in calls) == 6
    assert any("is to be recomputed" in why for why in twins.recorded.programs.refusals)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("level", LEVELS[:4])
@pytest.mark.parametrize(("name", "shape"), [
    ("mlp", (1, 28, 28)), ("lenet", (1, 28, 28)),
    pytest.param("resnet20", (3, 8, 8), marks=pytest.mark.slow),
])  # fmt: skip
def test_ready_nets_have_the_same_bits(name, shape, level, recorded):
    def make():
        more = (shape, 5) if name == "resnet20" else ()
        return singanet.models.build(name, *more, seed=0)

    twins = twins_at(make, level, recorded)
    rng = np.random.default_rng(0)
    for _ in range(2):
        twins.step(rng.standard_normal((4, *shape)).astype(np.float32), rng.integers(0, 5, 4))


@pytest.mark.parametrize("name", [
    *("alexnet", "autoencoder", "deepfm", "preresnet20", "transformer", "wide_deep"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("char_rnn", "lstm")),
])  # fmt: skip
@pytest.mark.full
def test_other_ready_nets_have_the_same_bits(name):
    entry, rng = singanet.models.find(name), np.random.default_rng(0)
    shape = (3, 8, 8) if name == "preresnet20" else entry.input_shape

    def make():
        return singanet.models.build(name, *((shape, 5) if name == "preresnet20" else ()), seed=0)

    twins = twins_at(make, "optimal", True)
    for _ in range(2):
        if entry.task == "text":
            x = y = rng.integers(0, 60, (2, *shape))
        elif entry.task == "tabular":
            numbers = rng.standard_normal((4, shape[1]), np.float32)
            x = {"categorical": rng.integers(0, 2, (4, shape[0])), "numeric": numbers}
            y = rng.integers(0, 2, 4)
        else:
            x = rng.random((4, *shape), np.float32)
            y = x if entry.task == "reconstruction" else rng.integers(0, 5, 4)
        twins.step(x, y)


@pytest.mark.parametrize("level", ["none", "cheap"])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_shared_layer_goes_back_by_the_parameters_of_its_forward(level, recorded):
    x = Input("x", (4,))
    norm = nn.LayerNorm("norm")
    hidden = Dense("d2", 4)(Dense("d1", 4)(norm(norm(x))))
    net = singanet.FeedForwardNet(
        inputs=x, outputs=Dense("out", 3)(hidden), loss=SquaredError(), seed=0
    )
    net.programs.enabled, net.programs.recompute = recorded, level
    rng, found = np.random.default_rng(0), {}
    x, y = rng.standard_normal((3, 4), np.float32), rng.standard_normal((3, 3), np.float32)
    for k in range(4):
        net.loss.forward(True, net.forward(True, x), y)
        if k == 3:
            for param in net.params()[:2]:
                param.value = param.value * np.float32(0.5) + 1
        for names, _, grads in net.backward(net.loss.backward()):
            found.setdefault(k, {}).update(zip(names, map(np.copy, grads), strict=True))
    for name, grad in found[0].items():
        np.testing.assert_array_equal(found[3][name], grad)
