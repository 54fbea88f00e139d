"""Nets that take turns with one reducer, beside nets with one each."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, Adam
from singanet.parallel import AllReduce, PowerSGD, Sharded, SparseAllReduce
from tests.kit.ranks import together

REDUCERS = {
    "all": lambda comm: AllReduce(Adam(0.05), comm),
    "sparse": lambda comm: SparseAllReduce(SGD(0.1, momentum=0.9), comm, ratio=0.3),
    "power": lambda comm: PowerSGD(SGD(0.1, momentum=0.9), comm, rank=1, gain=0.5),
    "sharded": lambda comm: Sharded(Adam(0.05), comm, level=1),
    "gathered": lambda comm: Accumulator(AllReduce(Adam(0.05), comm), 2),
}


def net_of(seed):
    layers = [Dense("fc", 8, input_sample_shape=(6,)), Activation("act", "tanh"), Dense("out", 3)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=seed)


def trained(comm, make, apart):
    """The values of two nets after steps in turns, with an optimizer each where ``apart``."""
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((14, 5, 6)).astype(np.float32)
    y = rng.integers(0, 3, (14, 5))
    first = make(comm)
    nets, optimizers = [net_of(1), net_of(2)], [first, make(comm) if apart else first]
    for k, turn in enumerate([0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0]):
        nets[turn].step(x[k], y[k], optimizers[turn])
    return [value.copy() for net in nets for value in net.param_values()]


@pytest.mark.parametrize("name", REDUCERS)
def test_nets_in_turns_on_ranks(name):
    found = []
    for apart in (False, True):
        ranks = together(lambda comm, apart=apart: trained(comm, REDUCERS[name], apart))
        for one, other in zip(*ranks, strict=True):
            np.testing.assert_array_equal(one, other)
        found.append(ranks[0])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
