"""Optimizer state: its sources, assigned rates, settings of parameters, and its place in memory."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.layers import Activation, Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, Adam, ClipByRunningNorm, ClipByValue
from singanet.optimizer import schedules as curves
from singanet.optimizer.chain import state_sources
from singanet.params.param import ParamSpec
from singanet.training.callbacks import ModelCheckpoint
from tests.optimizer.rules import RULES

RNG = np.random.default_rng(2)
X = RNG.standard_normal((16, 3)).astype(np.float32)
Y = RNG.standard_normal((16, 2)).astype(np.float32)
COPIES = [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]


def net_of(recorded=True, dtype="float32"):
    layers = [Dense("a", 4, input_sample_shape=(3,)), Activation("r"), Dense("b", 2)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=1)
    net.programs.enabled = recorded
    net.as_type(dtype)
    return net


def values(net):
    return [value.copy() for value in net.param_values()]


def expect_same(these, those):
    for mine, theirs in zip(these, those, strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Own(SGD):
    """A user's optimizer with state of its own."""

    def state_dict(self):
        return {**super().state_dict(), "mine": np.arange(3)}


SOURCES = [*RULES.values()]
SOURCES += [
    lambda: Adam(lr=curves.Plateau(0.1)), lambda: Accumulator(Adam(lr=0.1), 3),
    lambda: ClipByRunningNorm(Accumulator(SGD(lr=0.1, momentum=0.9), 2), 1.0),
    lambda: Own(lr=0.1, momentum=0.9), lambda: Accumulator(Own(lr=0.1), 2)
]  # fmt: skip


@pytest.mark.parametrize("make", SOURCES)
def test_sources_give_the_state_dict(make):
    optimizer, rng = make(), np.random.default_rng(0)
    arrays = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    for _ in range(4):
        optimizer.update(["w", "b"], arrays, [np.ones_like(value) for value in arrays])
    wanted, found = optimizer.state_dict(), {s.name: s.array() for s in state_sources(optimizer)}
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)


# --- rates that were assigned ---------------------------------------------------------------------

RATE = {"learning_rate": 0.03}
MADE = {name: (rule, RATE) for name, rule in RULES.items()} | {
    "sgd": (lambda: SGD(lr=0.1, momentum=0.9), RATE | {"momentum": 0.5}),
    "adam": (lambda: Adam(lr=0.1), {"learning_rate": 0.02, "beta_1": 0.7, "epsilon": 1e-3}),
    "adamw": (RULES["adamw"], {"weight_decay": 0.3}),
    "rmsprop": (RULES["rmsprop"], {"rho": 0.5}),
    "a schedule": (lambda: SGD(lr=curves.Exponential(0.1, 2, 0.5)), RATE),
    "clipped": (lambda: ClipByValue(SGD(lr=0.1), 0.5), RATE),
    "gathered": (lambda: Accumulator(SGD(lr=0.1), 2), RATE),
}


@pytest.mark.parametrize("name", MADE)
def test_a_state_goes_on_at_its_rates(name):
    make, assigned = MADE[name]
    net, one = net_of(), make()
    rule_of = lambda optimizer: getattr(optimizer, "optimizer", optimizer)  # noqa: E731
    net.step(X, Y, one), net.step(X, Y, one)
    for key, number in assigned.items():
        setattr(rule_of(one), key, number)
    net.step(X, Y, one)
    state, stood = one.state_dict(), values(net)
    assert {key for key in state if key.startswith("*/")} == {f"*/{key}" for key in assigned}
    assert {source.name for source in state_sources(one)} == state.keys()
    for _ in range(4):
        net.step(X, Y, one)
    wanted = values(net)
    for other in (make(), one):
        rule_of(other).lr = 7.0
        other.load_state_dict(state)
        for param, value in zip(net.params(), stood, strict=True):
            param.value[...] = value
        for _ in range(4):
            net.step(X, Y, other)
        expect_same(net.param_values(), wanted)


def test_a_rate_that_was_not_assigned_is_as_constructed_again():
    one = SGD(lr=0.1, momentum=0.9)
    state = one.state_dict()
    assert not state
    one.lr, one.momentum = 0.5, 0.1
    one.load_state_dict(state)
    assert (one.lr, one.momentum) == (0.1, 0.9)


def test_a_state_of_other_schedules_changes_nothing():
    one, other = SGD(lr=curves.Plateau(0.1)), SGD(lr=0.2)
    one.momentum, other.momentum = 0.5, 0.3
    bad = [np.zeros(2), np.array("x")]
    for wrong in (one.state_dict(), *({"*/learning_rate": rate} for rate in bad)):
        with pytest.raises(DataError):
            other.load_state_dict(wrong)
        assert (other.lr, other.momentum) == (0.2, 0.3)
    # An assigned number overrides the schedule.
    plain = SGD(lr=0.2)
    plain.lr = 0.04
    one.load_state_dict(plain.state_dict())
    assert (one.lr, one.momentum) == (0.04, 0.0)


def test_a_fit_goes_on_at_the_rate_that_was_assigned(tmp_path):
    def fit(assigned, folder, **options):
        net, optimizer = net_of(), SGD(lr=0.1)
        net.compile(optimizer, SquaredError())
        if assigned is not None:
            optimizer.lr = assigned
        keep = [ModelCheckpoint(folder)]
        net.fit(X, Y, batch_size=4, verbose=False, callbacks=keep, **options)
        return values(net), optimizer.lr

    found = []
    for before, after in [(0.02, None), (None, 0.03)]:
        folder = tmp_path / str(before)
        fit(before, folder, epochs=1)
        resumed, now = fit(after, folder, epochs=2, resume=folder)
        assert now == (before or after)
        found.append(resumed)
    expect_same(found[0], fit(0.02, tmp_path / "whole", epochs=2)[0])


# --- settings of parameters: the last one counts --------------------------------------------------

ALL = {"a/weight", "a/bias", "b/weight", "b/bias"}


def moved(net, optimizer, steps=1):
    """The parameters that steps of ``optimizer`` change."""
    before = {param.name: param.value.copy() for param in net.params()}
    for _ in range(steps):
        net.step(X, Y, optimizer)
    return {p.name for p in net.params() if (p.value != before[p.name]).any()}


def still(name):
    return [ParamSpec(name, lr_mult=0.0)]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("around", [lambda r: r, lambda r: Accumulator(ClipByValue(r, 9.0), 1)])
def test_settings_from_before_the_first_step_stay(recorded, around):
    net, optimizer = net_of(recorded), around(SGD(0.1))
    optimizer.register_all(still("a/weight"))
    assert moved(net, optimizer, 3) == ALL - {"a/weight"}
    assert moved(net, SGD(0.1)) == ALL, "the rates are those of one optimizer"
    net = net_of(recorded)
    net.compile(optimizer, loss=SquaredError())
    before = net["a"].params["weight"].value.copy()
    net.fit(X, Y, epochs=2, batch_size=2, verbose=0)
    np.testing.assert_array_equal(net["a"].params["weight"].value, before)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_later_setting_counts(recorded):
    net, optimizer = net_of(recorded), SGD(0.1)
    optimizer.register_all(net.param_specs())
    weight = net.params()[0]
    weight.spec = replace(weight.spec, lr_mult=0.0)
    assert moved(net, optimizer, 3) == ALL - {weight.name}
    optimizer.register(weight.name, ParamSpec(weight.name))
    assert moved(net, optimizer, 3) == ALL
    optimizer.register_all(still("b/bias"))
    assert moved(net, optimizer) == ALL - {"b/bias"}
    net["b"].trainable = False
    net["b"].trainable = True
    assert moved(net, optimizer) == ALL - {"b/bias"}, "as another change does not take it back"
    weight.spec = replace(weight.spec, constraint=1e-30)
    assert moved(net, optimizer) == ALL - {"b/bias", weight.name}


@pytest.mark.parametrize("copied", COPIES)
def test_copies_go_by_the_same_settings(copied):
    net, optimizer = net_of(), SGD(0.1)
    optimizer.register_all(still("a/bias"))
    net, optimizer = copied((net, optimizer))
    assert moved(net, optimizer) == ALL - {"a/bias"}
    bias = net["a"].params["bias"]
    bias.spec = replace(bias.spec, lr_mult=1.0)
    assert moved(net, optimizer) == ALL


def test_a_nested_net_has_the_rates_of_its_own_parameters():
    inner = singanet.FeedForwardNet([Dense("a", 2, input_sample_shape=(3,))], name="inner")
    weight = inner.layers[0].params["weight"]
    outer = singanet.FeedForwardNet([inner, Dense("c", 2)], loss=SquaredError(), seed=1)
    optimizer = SGD(0.1)
    moved(outer, optimizer)
    weight.spec = replace(weight.spec, lr_mult=0.0)
    named = next(param for param in outer.params() if param.root is weight.root)
    assert named.spec == ParamSpec(named.name, lr_mult=0.0)
    assert named.name not in moved(outer, optimizer)
    named.spec = ParamSpec(named.name)
    assert weight.spec == ParamSpec("a/weight")
    assert named.name in moved(outer, optimizer)


# --- state of parameters in buckets lies side by side ---------------------------------------------


def update(net, optimizer, rng):
    grads = [rng.standard_normal(v.shape).astype(v.dtype) for v in net.param_values()]
    optimizer.update(net.param_names(), net.param_values(), grads)
    return grads


def bases(optimizer, slot=0):
    return {id(state.arrays[slot].base) for state in optimizer.states()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_state_lies_as_the_parameters_do(dtype, rng):
    net, optimizer = net_of(dtype=dtype), Adam(lr=0.1)
    for _ in range(3):
        update(net, optimizer, rng)
    assert len(bases(optimizer)) == len(bases(optimizer, 1)) == 1
    assert bases(optimizer) != bases(optimizer, 1)
    (bucket,) = net.buckets()
    for name, part in zip(bucket.names, bucket.slices, strict=True):
        first, second = optimizer.state(name).arrays
        np.testing.assert_array_equal(first.base[part], first)
        assert first.dtype == second.dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", RULES)
def test_updates_are_those_of_arrays_apart(name, rng):
    net, one, other = net_of(), RULES[name](), RULES[name]()
    for each in (one, other):
        each.follow(net.params(), net)
    apart = values(net)
    for _ in range(4):
        other.update(net.param_names(), apart, update(net, one, rng))
    expect_same(net.param_values(), apart)
    saved, also = one.state_dict(), other.state_dict()
    assert saved.keys() == also.keys()
    expect_same(saved.values(), also.values())


def loaded(optimizer):
    made = Adam(lr=0.1)
    made.load_state_dict(optimizer.state_dict())
    return made


@pytest.mark.parametrize("how", [*COPIES, loaded])
def test_copied_and_loaded_state_goes_on(how, rng):
    net, optimizer = net_of(), Adam(lr=0.1)
    for _ in range(2):
        update(net, optimizer, rng)
    made, twin = how(optimizer), copy.deepcopy(net)
    grads = update(net, optimizer, rng)
    made.update(twin.param_names(), twin.param_values(), grads)
    expect_same(net.param_values(), twin.param_values())
    for name, value in zip(twin.param_names(), twin.param_values(), strict=True):
        before = [array.copy() for array in made.state(name).arrays]
        after = made.settle(name, value).arrays
        assert made.settle(name, value).arrays is after
        expect_same(before, after)
    assert len(bases(made)) == 1


def test_state_of_two_names_of_one_array_and_of_slices(rng):
    optimizer, value = SGD(lr=0.1, momentum=0.9), net_of().param_values()[0]
    for name in "ab":
        optimizer.update([name], [value], [np.ones_like(value)])
    a, b = optimizer.state("a").arrays[0], optimizer.state("b").arrays[0]
    assert not np.shares_memory(a, b)
    np.testing.assert_array_equal(a, b)
    large, optimizer = np.zeros(10_000, np.float32), ClipByValue(SGD(lr=0.1, momentum=0.9), 1.0)
    optimizer.update(["w"], [large[5:9]], [np.ones(4, np.float32)])
    (state,) = optimizer.optimizer.states()
    assert (state.arrays[0].size, state.arrays[0].base) == (4, None)


def test_state_that_was_forgotten_begins_with_zeros(rng):
    net, optimizer = net_of(), SGD(lr=0.1, momentum=0.9)
    update(net, optimizer, rng)
    optimizer.load_state_dict({})
    start = values(net)
    grads = update(net, optimizer, rng)
    expect_same(
        net.param_values(), [v - g * np.float32(0.1) for v, g in zip(start, grads, strict=True)]
    )


def test_state_is_on_the_device_of_its_parameters(xp, rng):
    net, optimizer = net_of(), Adam(lr=0.1)
    grads = [xp.asarray(rng.standard_normal(v.shape, np.float32)) for v in net.param_values()]
    if xp is not np:
        net.to_device(singanet.device.Device("there", singanet.ops.ops_for(xp.zeros(1))))
    optimizer.update(net.param_names(), net.param_values(), grads)
    for state in optimizer.states():
        assert all(isinstance(array, xp.ndarray) for array in state.arrays)
