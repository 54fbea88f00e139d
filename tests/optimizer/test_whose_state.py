"""State belongs to its parameters: shared optimizers are compared with one for each net."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

from singanet import FeedForwardNet, load_model
from singanet import optimizer as opt
from singanet.device import cpu
from singanet.executor import Executor
from singanet.layers import Activation, BatchNormalization, Dense, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, MixedPrecision, schedules
from singanet.optimizer.wrapper import rule_of
from singanet.testing import strict_device
from tests.optimizer.rules import RULES

RNG = np.random.default_rng(7)
X = RNG.standard_normal((12, 8, 4)).astype(np.float32)
Y = RNG.integers(0, 3, (12, 8))

OPTIMIZERS = {
    "adam": lambda: Adam(0.01),
    "momentum": lambda: SGD(schedules.Exponential(0.1, 3, 0.5), momentum=0.9),
    "accumulator": lambda: Accumulator(Adam(0.01), 3),
    "running norm": lambda: opt.ClipByRunningNorm(Adam(0.01), 0.1),
    "global norm": lambda: ClipByGlobalNorm(Adam(0.01), 0.1),
}


def net_of(seed, head="out"):
    layers = [Dense("fc", 5, input_sample_shape=(4,)), BatchNormalization("bn")]
    layers += [Activation("act", "tanh"), Dense(head, 3)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=seed)


def by_step(net, optimizer, k):
    net.step(X[k], Y[k], optimizer)


def by_layers(net, optimizer, k):
    net.programs.enabled = False
    net.step(X[k], Y[k], optimizer)


def by_loop(net, optimizer, k):
    scores = net.forward(True, X[k])
    net.loss.forward(True, scores, Y[k])
    for names, values, grads in net.backward(net.loss.backward()):
        optimizer.update(names, values, grads)


def by_array(net, optimizer, k):
    grads, _ = net.train(X[k], Y[k])
    for name, value, grad in zip(net.param_names(), net.param_values(), grads, strict=True):
        if grad is not None:
            optimizer.apply(0, grad, value, name)


def by_fit(net, optimizer, k):
    if net.compiled is None:
        net.compile(optimizer)
    net.fit(X[k], Y[k], batch_size=8, shuffle=False, verbose=False, epochs=net.compiled.epochs + 1)


WAYS = [by_step, by_layers, by_loop, by_array, by_fit]


def same(net, twin):
    return all(map(np.array_equal, net.param_values(), twin.param_values()))


def cases():
    for name in OPTIMIZERS:
        for way in WAYS:
            by_hand = way is by_array and name not in ("adam", "momentum")
            if not by_hand and not (way is by_loop and name == "global norm"):
                yield pytest.param(name, way, id=f"{name}-{way.__name__}")


def executor_of(seed, rule):
    x, y, head = Input("x", (4,)), Input("y", (), dtype="int64"), Dense("out", 3)
    loss = SoftmaxCrossEntropy()(head(Dense("fc", 5)(x)), y)
    whole, part = rule.minimize(loss), rule.minimize(loss, head)
    return Executor({"whole": [loss, whole], "head": [loss, part]}, seed=seed)


@pytest.mark.few(7)
@pytest.mark.parametrize(("name", "way"), [*cases()])
def test_nets_that_take_turns_train_as_each_alone(name, way):
    nets, shared, turns = [net_of(1), net_of(2)], OPTIMIZERS[name](), np.random.default_rng(3)
    alone = [(net_of(1), OPTIMIZERS[name]()), (net_of(2), OPTIMIZERS[name]())]
    for k in range(12):
        which = int(turns.integers(2))
        way(nets[which], shared, k)
        way(*alone[which], k)
    assert all(same(net, twin) for net, (twin, _) in zip(nets, alone, strict=True))


@pytest.mark.few(5)
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(("name", "way"), [*cases()])
def test_each_fold_begins_anew(name, way, gone):
    shared, kept = OPTIMIZERS[name](), []
    for fold in range(3):
        net, twin, own = net_of(fold), net_of(fold), OPTIMIZERS[name]()
        for k in range(4 * fold, 4 * fold + 4):
            way(net, shared, k)
            way(twin, own, k)
        assert same(net, twin)
        kept += [] if gone else [net]
        del net
        gc.collect()


def test_the_state_of_a_net_that_is_gone_is_let_go():
    rule, net = Adam(0.01), net_of(1)
    by_step(net, rule, 0)
    by_step(net_of(2), rule, 1)
    by_step(net, rule, 2)
    root = weakref.ref(net.params()[0].root)
    state = weakref.ref(rule.state("fc/weight").arrays[0].base)
    by_step(net_of(3), rule, 3)
    assert state() is not None
    del net
    gc.collect()
    assert root() is None
    assert state() is None


def test_a_schedule_that_learns_begins_anew_with_another_net():
    rule = Adam(schedules.Plateau(0.1, factor=0.5, patience=1))
    first, second = net_of(1), net_of(2)
    by_step(first, rule, 0)
    for _ in range(3):
        rule.lr.observe(1.0)
    assert rule.lr(0) == 0.025
    by_step(second, rule, 0)
    assert rule.lr(0) == 0.1
    by_step(first, rule, 0)
    assert rule.lr(0) == 0.025


@pytest.mark.parametrize("way", [by_step, by_loop])
def test_loaded_state_is_for_the_first_net_of_its_names(way):
    net, rule = net_of(1), Adam(0.01)
    for k in range(4):
        way(net, rule, k)
    resumed, again = net_of(5), Adam(0.01)
    # It has trained another one before.
    way(net_of(6), again, 0)
    for param, value in zip(resumed.params(), net.param_values(), strict=True):
        param.put(value)
    again.load_state_dict(rule.state_dict())
    for k in range(4, 8):
        way(net, rule, k)
        way(resumed, again, k)
    assert same(net, resumed)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_net_that_is_copied_with_its_optimizer_goes_on(name, copied):
    pair = net_of(1), OPTIMIZERS[name]()
    by_step(net_of(2), pair[1], 9)
    for k in range(4):
        by_step(*pair, k)
    other = copied(pair)
    for k in range(4, 8):
        by_step(*pair, k)
        by_step(*other, k)
    assert same(pair[0], other[0])


@pytest.mark.few(8)
@pytest.mark.parametrize("way", [by_step, by_layers, by_loop])
@pytest.mark.parametrize("name", [*RULES, *OPTIMIZERS])
def test_a_net_that_is_moved_or_converted_goes_on(name, way):
    if name in ("global norm", "muon") and way is by_loop:
        pytest.skip("it needs more of a loop than gradients")
    made = RULES.get(name) or OPTIMIZERS[name]
    moves = [cpu, strict_device, strict_device, cpu, strict_device]
    layers = [Dense("fc", 5, activation="tanh", input_sample_shape=(4,)), Dense("out", 3)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)
    (moved, wide), rules = (copy.deepcopy(net) for _ in range(2)), [made() for _ in range(3)]
    for k in range(10):
        way(net, rules[0], k)
        moved.to_device(moves[k % 5]())
        way(moved, rules[1], k)
        wide.as_type([np.float32, np.float64][k % 3 == 2])
        way(wide, rules[2], k)
        if k == 8:
            arrays = [a for state in rule_of(rules[2]).states() for a in state.arrays]
            assert {a.dtype for a in arrays} <= {wide.dtype}
    moved.to_device(cpu())
    for theirs in (moved, wide):
        for ours, their in zip(net.param_values(), theirs.param_values(), strict=True):
            np.testing.assert_allclose(their, ours, 2e-3, 2e-4)


@pytest.mark.parametrize("way", [by_step, by_loop])
def test_a_parameter_goes_on_whatever_array_it_has(way):
    net, twin, rule, own = net_of(1), net_of(1), Adam(0.01), Adam(0.01)
    for k in range(8):
        way(net, rule, k)
        way(twin, own, k)
        for param in net.params():
            param.value = param.value.copy()
        if k == 4:
            net._regroup()
    assert same(net, twin)


def test_what_two_nets_share_has_one_state_and_their_heads_each_their_own():
    def two_of_a_trunk():
        nets = [trunk.upto("act", seed=seed) for trunk in [net_of(1)] for seed in (3, 4)]
        for net in nets:
            net.add(Dense("out", 3))
            net.loss = SoftmaxCrossEntropy()
        return nets

    # PyTorch's state by tensor, emulated by hand: one Adam for the trunk, one for each head.
    nets, theirs, rule = two_of_a_trunk(), two_of_a_trunk(), Adam(0.01)
    common, heads = Adam(0.01), [Adam(0.01), Adam(0.01)]
    for k in range(8):
        by_step(nets[k % 2], rule, k)
        net = theirs[k % 2]
        net.loss.forward(True, net.forward(True, X[k]), Y[k])
        for names, values, grads in net.backward(net.loss.backward()):
            of_head = bool(names) and names[0].startswith("out/")
            (heads[k % 2] if of_head else common).update(names, values, grads)
    assert all(map(same, nets, theirs))


def test_nets_of_other_names_share_an_optimizer_as_they_did():
    first, second, rule = net_of(1), net_of(2, "head"), Adam(0.01)
    twin, own = net_of(1), Adam(0.01)
    for k in range(6):
        by_step(first, rule, k)
        by_step(twin, own, k)
    by_step(FeedForwardNet([Dense("d", 3, input_sample_shape=(4,))], loss=first.loss), rule, 0)
    assert same(first, twin)
    assert {"fc/weight/step", "d/weight/step"} <= rule.state_dict().keys()
    del second


def test_masters_of_mixed_precision_are_each_nets_own():
    def made(seed, precision, rule):
        net = net_of(seed)
        net.compile(rule, mixed_precision=precision)
        return net

    precision, rule = MixedPrecision(scale=4.0), Adam(0.01)
    nets = [made(seed, precision, rule) for seed in (1, 2)]
    twins = [made(seed, MixedPrecision(scale=4.0), Adam(0.01)) for seed in (1, 2)]
    for k in range(12):
        for some in (nets, twins):
            by_fit(some[k % 2], None, k)
    assert all(map(same, nets, twins))


def test_executors_that_take_turns_train_as_each_alone():
    shared = Adam(0.01)
    ours, theirs = ([executor_of(k, rule or Adam(0.01)) for k in (1, 2)] for rule in (shared, None))
    for k in range(10):
        found = (some[k % 2].run("whole", {"x": X[k], "y": Y[k]})[0] for some in (ours, theirs))
        assert np.array_equal(*found)


def by_file(net, tmp_path):
    net.save_model(tmp_path / "net.singanet")
    return load_model(tmp_path / "net.singanet")


def by_weight_file(net, tmp_path):
    net.save(tmp_path / "net.weights.h5", optimizer=net.compiled.optimizer)
    other, rule = net_of(9), SGD(schedules.Exponential(0.1, 3, 0.5), momentum=0.9)
    rule.update(["fc/bias"], [np.zeros(5, np.float32)], [np.ones(5, np.float32)])
    other.load(tmp_path / "net.weights.h5", optimizer=rule)
    other.compile(rule)
    net_of(8).step(X[0], Y[0], rule)  # what was loaded is the net's, whichever trains first
    return other


WAYS_OUT = {
    "copy": lambda net, tmp_path: copy.deepcopy(net),
    "pickle": lambda net, tmp_path: pickle.loads(pickle.dumps(net)),
    "file": by_file,
    "weight file": by_weight_file,
}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in OPTIMIZERS for way in WAYS_OUT if way != "weight file"]
    + [("momentum", "weight file")],
)
def test_what_leaves_a_net_is_its_own_state_though_another_one_trained_last(name, way, tmp_path):
    shared, first, last, twin = OPTIMIZERS[name](), net_of(1), net_of(2), net_of(1)
    for net, rule in ((first, shared), (last, shared), (twin, OPTIMIZERS[name]())):
        net.compile(rule)
    for net, steps in ((first, 4), (twin, 4), (last, 5)):
        for k in range(steps):
            by_step(net, net.compiled.optimizer, k)
    nets = [WAYS_OUT[way](first, tmp_path), first, twin]
    for k in range(4, 8):
        for net in nets:
            net.train_on_batch(X[k], Y[k])
    assert same(nets[0], twin)
    assert same(first, twin)


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("way", ["copy", "pickle", "file"])
def test_what_is_thawed_within_a_mean_goes_on_as_if_nothing_was_saved(way, every, tmp_path):
    twin = net_of(1)
    twin.compile(Accumulator(SGD(0.1), every))
    twin.freeze("out")
    twin.train_on_batch(X[0], Y[0])
    made = WAYS_OUT[way](twin, tmp_path)
    for net in (made, twin):
        net.unfreeze()
        for k in range(1, 6):
            net.train_on_batch(X[k], Y[k])
    assert same(made, twin)


@pytest.mark.parametrize("way", ["copy", "file"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_leaves_an_executor_is_its_own_state(name, way, tmp_path):
    def run(executor, counts):
        for k in counts:
            executor.run("head" if k % 3 == 2 else "whole", {"x": X[k], "y": Y[k]})

    shared, make = OPTIMIZERS[name](), OPTIMIZERS[name]
    first, last, twin = (executor_of(1, shared), executor_of(2, shared), executor_of(1, make()))
    run(first, range(4))
    run(twin, range(4))
    run(last, range(6))
    if way == "copy":
        other = copy.deepcopy(first)
    else:
        first.save(tmp_path / "first.npz")
        other = executor_of(3, make())
        other.load(tmp_path / "first.npz")
    for executor in (other, first, twin):
        run(executor, range(4, 9))
    assert same(other.net, twin.net)
    assert same(first.net, twin.net)


def test_an_offloaded_net_and_one_in_memory_take_turns(tmp_path):
    shared, nets = Adam(0.01), [net_of(1), net_of(2)]
    twins, own = [net_of(1), net_of(2)], [Adam(0.01), Adam(0.01)]
    nets[0].offload(tmp_path / "folder", keep="1MB", optimizer=shared)
    for k in range(8):
        nets[k % 2].step(X[k], Y[k], shared)
        twins[k % 2].step(X[k], Y[k], own[k % 2])
    nets[0].onload()
    assert all(map(same, nets, twins))


def test_arrays_that_are_no_nets_go_by_their_names():
    rule, other, (value, kept) = Adam(0.1), Adam(0.1), np.ones((2, 3), np.float32)
    for _ in range(4):
        value = value.copy()
        rule.update(["w"], [value], [np.full(3, 0.5, np.float32)])
        other.update(["w"], [kept], [np.full(3, 0.5, np.float32)])
    assert np.array_equal(value, kept)
