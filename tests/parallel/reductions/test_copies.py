"""Copies of nets and their reducers, during a training and before it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from singanet.layers import BatchNormalization, Dropout
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SparseAllReduce,
)
from tests.kit.nets import dense_net
from tests.kit.ranks import expect_same_bits, together

MADE = {
    "AllReduce": lambda comm: AllReduce(Adam(), comm=comm),
    "Sharded": lambda comm: Sharded(Adam(), comm=comm),
    "Sharded 3": lambda comm: Sharded(Adam(), level=3, comm=comm),
    "LocalSGD": lambda comm: LocalSGD(SGD(lr=0.1), every=3, comm=comm),
    "PartialUpdate": lambda comm: PartialUpdate(SGD(lr=0.1), comm=comm),
    "SparseAllReduce": lambda comm: SparseAllReduce(SGD(lr=0.1), comm=comm),
    "PowerSGD": lambda comm: PowerSGD(SGD(lr=0.1, momentum=0.9), comm=comm),
    "Hybrid": lambda comm: Hybrid(SGD(lr=0.1), comm=comm),
    "ParameterServer": lambda comm: ParameterServer(SGD(lr=0.1), comm=comm),
    "Accumulator": lambda comm: Accumulator(AllReduce(Adam(), comm=comm), 2),
    "clipped": lambda comm: AllReduce(ClipByGlobalNorm(Adam(), 0.1), comm=comm),
}
ON_RANKS = [name for name in MADE if name not in ("Hybrid", "ParameterServer")]


def data(rank=0, size=1):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 6)).astype(np.float32), rng.integers(0, 4, 24)
    return x[rank::size], y[rank::size]


def net_of():
    """Statistics are of all ranks, masks each rank's own."""
    return dense_net(wide=8, more=[BatchNormalization("n", synchronized=True), Dropout("o", 0.3)])


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_compiled_net_and_its_copies_train_alike(name, begun):
    net = net_of()
    net.compile(MADE[name](None))
    if begun:
        net.fit(*data(), batch_size=8, epochs=2, verbose=False)
    nets = [net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    losses = [each.fit(*data(), batch_size=8, epochs=2, verbose=False)["loss"] for each in nets]
    assert losses[0] == losses[1] == losses[2]
    expect_same_bits(nets)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("name", ON_RANKS)
def test_copies_go_on_with_the_same_ranks(name, steps):
    """Between averagings too, where the ranks' parameters differ."""

    def work(comm):
        x, y = data(comm.rank, comm.size)
        net, optimizer = net_of(), MADE[name](comm)
        for _ in range(steps):
            net.step(x, y, optimizer)
        pairs = [(net, optimizer), copy.deepcopy((net, optimizer))]
        losses = [[each.step(x, y, by) for _ in range(5)] for each, by in pairs]
        assert losses[0] == losses[1]
        expect_same_bits([net, pairs[1][0]])

    together(work)


def test_a_copy_of_the_optimizer_alone_meets_its_net_anew():
    """A copy does not know nets by the ids of this process."""
    net, optimizer = net_of(), AllReduce(Adam())
    net.step(*data(), optimizer)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert optimizer._has_met
        assert not made._has_met
        net.step(*data(), made)
        assert made._has_met
