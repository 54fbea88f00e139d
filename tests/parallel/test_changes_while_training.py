"""What a user changes between steps, alike on all ranks, has the effect that it has in one."""

from dataclasses import replace

import numpy as np
import pytest

import singanet
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    SparseAllReduce,
)
from singanet.params.param import ParamSpec
from tests.kit.nets import values_of
from tests.kit.ranks import expect_same_values, served, together

X = np.arange(48).reshape(16, 3) * 7 % 20
Y = np.arange(16) % 4


def words_net():
    return singanet.FeedForwardNet(
        [
            Embedding("e", 20, 4, input_sample_shape=(3,)),
            Flatten("f"),
            Dense("h", 5),
            Dense("d", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=1,
    )


def rule():
    return SGD(0.3, momentum=0.5)


def tell_before(k, net, optimizer):
    if k == 0:
        optimizer.register_all([ParamSpec("h/weight", lr_mult=0.0), ParamSpec("e/weight", 0.5)])


def tell_later(k, net, optimizer):
    if k == 2:
        optimizer.register("h/weight", ParamSpec("h/weight", lr_mult=0.25))


def assign(k, net, optimizer):
    if k == 2:
        weight = net["d"].params["weight"]
        weight.spec = replace(weight.spec, lr_mult=0.25, decay_mult=2.0)


def thaw(k, net, optimizer):
    if k in (0, 3):
        net["h"].trainable = k == 3
    if k in (0, 4):
        net["e"].trainable = k == 4


def freeze(k, net, optimizer):
    if k == 2:
        net["h"].trainable = False


def thaw_one_and_freeze_another(k, net, optimizer):
    if k in (0, 3):
        net["h"].trainable = k == 3
        net["d"].trainable = k == 0


CHANGES = [tell_before, tell_later, assign, thaw, freeze, thaw_one_and_freeze_another]
ROUNDS = 6


def trained(optimizer, change, part, recorded=True):
    net = words_net()
    net.programs.enabled = recorded
    for k in range(ROUNDS):
        change(k, net, optimizer)
        net.step(X[part], Y[part], optimizer)
    return net, optimizer


def expect_near(found, change, atol=2e-6):
    expect_same_values(found)
    wanted = values_of(trained(rule(), change, slice(None))[0])
    for name, value in wanted.items():
        np.testing.assert_allclose(found[0][name], value, rtol=2e-5, atol=atol, err_msg=name)


@pytest.mark.few(6)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda comm: AllReduce(rule(), comm),
        lambda comm: SparseAllReduce(rule(), comm, ratio=1.0),
        lambda comm: Accumulator(AllReduce(rule(), comm), 1),
    ],
    ids=["all reduce", "sparse", "accumulated"],
)
def test_reductions_are_one_process(wrap, change, recorded):
    def work(comm):
        own = slice(0, 6) if comm.rank == 0 else slice(6, 16)
        return values_of(trained(wrap(comm), change, own, recorded)[0])

    expect_near(together(work), change)


@pytest.mark.few(6)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [ParameterServer, Hybrid])
def test_servers_are_one_process(kind, change, recorded):
    def work(comm, ranks):
        own = slice(0, 6) if comm.rank == 0 else slice(6, 16)
        net, optimizer = trained(kind(rule(), comm=comm, servers=ranks), change, own, recorded)
        optimizer.unify(net)
        found = values_of(net)
        comm.barrier()
        return found

    expect_near(served(work), change)


@pytest.mark.few(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [LocalSGD, PartialUpdate])
def test_ranks_that_go_their_own_ways_end_as_one(kind, change):
    def work(comm):
        own = slice(0, 6) if comm.rank == 0 else slice(6, 16)
        net, optimizer = trained(kind(rule(), comm=comm), change, own)
        optimizer.unify(net)
        return values_of(net)

    expect_same_values(together(work))


def trained_in_parts(optimizer, recorded, part, rounds=21):
    """Layers are frozen and thawed at, and between, the updates of three micro-batches each."""
    net = words_net()
    net.programs.enabled = recorded
    turns = {4: ("h", False), 7: ("h", True), 8: ("e", False), 9: ("h", False), 12: ("e", True)}
    turns |= {13: ("h", True), 16: ("d", False), 17: ("d", True)}
    for k in range(rounds):
        if k in turns:
            name, trains = turns[k]
            net[name].trainable = trains
        # Micro-batches of unequal numbers of samples.
        x, y = X[: 6 + 5 * (k % 3)], Y[: 6 + 5 * (k % 3)]
        net.step(x[part], y[part], optimizer)
    return values_of(net)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("clip", [lambda rule: rule, lambda rule: ClipByGlobalNorm(rule, 0.1)])
def test_layers_frozen_between_micro_batches(clip, recorded):
    def work(comm):
        own = slice(0, 2) if comm.rank == 0 else slice(2, None)
        return trained_in_parts(Accumulator(AllReduce(clip(rule()), comm), 3), recorded, own)

    alone = trained_in_parts(Accumulator(clip(rule()), 3), recorded, slice(None))
    by_layers = trained_in_parts(Accumulator(clip(rule()), 3), False, slice(None))
    made = together(work)
    expect_same_values(made)
    expect_same_values([alone, by_layers])
    for name, value in alone.items():
        np.testing.assert_allclose(made[0][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_what_is_thawed_between_micro_batches_counts_as_zeros_before():
    """By hand: the mean over both micro-batches, of which one gave the layer nothing."""
    net = singanet.FeedForwardNet(
        [Dense("a", 2, input_sample_shape=(2,))], loss=SquaredError(), seed=0
    )
    other = singanet.FeedForwardNet(
        [Dense("a", 2, input_sample_shape=(2,))], loss=SquaredError(), seed=0
    )
    x, y = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32)
    bias = net["a"].params["bias"]
    bias.trainable = False
    optimizer = Accumulator(SGD(0.5), 2)
    net.step(x, y, optimizer)
    bias.trainable = True
    before = {p.name: p.value.copy() for p in net.params()}
    net.step(x, y, optimizer)
    other.step(x, y, SGD(0.5))
    whole = {p.name: p.value for p in other.params()}
    np.testing.assert_allclose(
        bias.value - before["a/bias"], (whole["a/bias"] - before["a/bias"]) / 2, rtol=1e-6
    )
    np.testing.assert_allclose(net["a"].params["weight"].value, whole["a/weight"], rtol=1e-6)
