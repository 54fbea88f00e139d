"""The memory of steps on a device, and budgets of it."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.testing import strict_device

WIDTH = 96


def net_there():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", WIDTH, input_sample_shape=(WIDTH,)))
    net.add(Dropout("drop", 0.5))
    net.add(Dense("second", WIDTH))
    net.add(Dense("scores", 4))
    net.to_device(strict_device())
    return net


def batch(count):
    rng = np.random.default_rng(count)
    return rng.standard_normal((count, WIDTH)).astype(np.float32), np.arange(count) % 4


def test_the_parts_are_those_of_the_device_alone():
    net, rule = net_there(), Adam(lr=0.01)
    parts = net.memory(64, rule).parts
    own = sum(param.nbytes for param in net.params())
    assert (parts["parameters"], parts["optimizer state"]) == (own, 2 * own)
    # Python's objects and oneDNN's kernels are the host's.
    assert parts["program"] == parts["kernels"] == 0
    net.step(*batch(64), rule)
    net.step(*batch(64), rule)
    (report,) = net.programs.reports()
    # But for what the loss works in.
    assert 0.9 * report.layout.nbytes <= parts["arena"] <= report.layout.nbytes


def test_what_is_planned_takes_no_memory_of_the_host_in():
    plan = net_there().plan(64, Adam(lr=0.01))
    assert plan.chosen.parts["recording"] == plan.chosen.parts["planning"] == 0


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_a_budget_is_kept_there_by_micro_batches(share):
    x, y = batch(64)
    rule = lambda: Adam(lr=0.01)  # noqa: E731
    whole = net_there().plan(64, rule()).peak
    net, plain = net_there(), net_there()
    for each, said in ((net, {"memory_budget": int(share * whole)}), (plain, {})):
        each.compile(rule())
        each.fit(x, y, 64, 3, verbose=False, **said)
    arena = net.programs.reports()[-1].layout.nbytes
    assert arena < share * plain.programs.reports()[-1].layout.nbytes
    for one, other in zip(net.params(), plain.params(), strict=True):
        np.testing.assert_allclose(one.value.get(), other.value.get(), rtol=1e-3, atol=1e-4)
