"""The memory of steps on a device, and budgets of it."""

import gc

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam
from singanet.program.layout import ALIGNMENT
from singanet.testing import strict_device, watch_device

WIDTH = 96


def net_there(depth=1):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", WIDTH, input_sample_shape=(WIDTH,)))
    net.add(Dropout("drop", 0.5))
    for k in range(depth):
        net.add(Dense(f"inner{k}", WIDTH))
        net.add(Activation(f"relu{k}"))
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


@pytest.mark.parametrize("rule", [SGD, Adam])
def test_what_is_told_before_a_step_is_what_is_handed_out(rule):
    with watch_device() as watch:
        net, optimizer = net_there(), rule(lr=0.01)
        parts = net.memory(64, optimizer).parts
        x, y = map(net.device.put, batch(64))
        for _ in range(4):
            net.step(x, y, optimizer)
        gc.collect()
    told = sum(parts[part] for part in ("arena", "parameters", "optimizer state", "other"))
    found = watch.live_bytes - x.nbytes - y.nbytes
    # An arena is asked for with room to align it; of labels the loss has numbers of its own.
    assert ALIGNMENT <= found - told <= ALIGNMENT + 32 * len(x)


def test_what_is_planned_takes_no_memory_of_the_host_in():
    plan = net_there().plan(64, Adam(lr=0.01))
    assert plan.chosen.parts["recording"] == plan.chosen.parts["planning"] == 0


@pytest.mark.slow
def test_a_budget_is_kept_there():
    x, y = batch(2048)
    plain, net = (net_there(depth=6) for _ in range(2))
    # Two batches are there beside the step.
    budget = int(0.7 * plain.plan(2048, Adam(lr=0.01)).peak) + 2 * x.nbytes
    for each, said in ((net, {"memory_budget": budget}), (plain, {})):
        each.compile(Adam(lr=0.01))
        each.fit(x, y, 2048, 2, verbose=False, **said)
    arenas = [each.programs.reports()[-1].layout.nbytes for each in (net, plain)]
    assert arenas[0] < 0.8 * arenas[1]
    for one, other in zip(net.params(), plain.params(), strict=True):
        np.testing.assert_allclose(one.value.get(), other.value.get(), rtol=1e-3, atol=1e-3)
