"""Calls on a device's arrays: their order, and the numbers that change from step to step."""

from __future__ import annotations

from operator import length_hint

import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm, L2Regularizer
from singanet.program.on_device.device_lowering import Launch
from singanet.testing import strict_device


def falling(step):
    """A user's own schedule."""
    return 0.5 / (step + 1)


RULES = {
    "schedule": lambda: SGD(lr=falling),
    "momentum": lambda: SGD(lr=falling, momentum=0.9),
    "adam": lambda: Adam(lr=0.05),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.05),
    "decay": lambda: Adam(lr=falling, regularizer=L2Regularizer(0.1)),
}


def net_there(drops=True):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", 7, input_sample_shape=(5,)))
    net.add(Activation("relu"))
    for name in ("one", "two") if drops else ():
        net.add(Dropout(name, 0.3))
    net.add(Dense("scores", 3))
    net.to_device(strict_device())
    return net


def batch(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((6, 5)).astype(np.float32), rng.integers(0, 3, 6)


@pytest.mark.parametrize("name", RULES)
def test_numbers_of_a_step_are_those_of_that_step(name):
    losses = []
    for recorded in (True, False):
        net, rule = net_there(), RULES[name]()
        net.programs.enabled = recorded
        losses.append([net.step(*batch(k), rule)[0] for k in range(7)])
        assert bool(net.programs.reports()) == recorded
    assert losses[0] == losses[1]


def test_numbers_may_stand_still_and_go_on():
    seen = []
    for recorded in (True, False):
        net = net_there()
        net.programs.enabled = recorded
        rate = iter([0.1, 0.1, 0.1, 0.5, 0.5, 0.1, 0.2])
        # Asked once for each of four arrays.
        held = [rate_ for rate_ in rate for _ in range(4)]
        rule = SGD(lr=lambda step, held=held: held[4 * step])
        seen.append([net.step(*batch(0), rule)[0] for _ in range(7)])
    assert seen[0] == seen[1]


def calls_of(net, rule):
    for k in range(3):
        net.step(*batch(k), rule)
    ((_, program),) = net.programs._every()
    return program, program.bound(program._bound.arena).feed.calls


def test_launches_are_together_but_for_looks_of_the_host():
    program, calls = calls_of(net_there(), SGD(lr=0.1))
    count = sum(1 for call in program.recording.calls if call.function is not None)
    assert length_hint(iter(calls)) == count
    groups = [group.calls for group in calls._groups if group.calls]
    together = [len(group) for group in groups if isinstance(group[0], Launch)]
    # Labels are looked at, and the loss is read: three runs, and not one for each draw.
    assert len(together) == 3
    assert sum(together) > count - 8
    named = [call.name for call in program.recording.calls if call.function is not None]
    assert named[:2] == ["uniform", "uniform"]


def test_an_iterator_tells_how_many_recorded_calls_are_left():
    _, calls = calls_of(net_there(), SGD(lr=0.1))
    each = iter(calls)
    left = length_hint(each)
    for group in calls._groups:
        next(each)
        left -= len(group.calls)
        assert length_hint(each) == left
    assert left == 0
    assert sum(1 for _ in calls.singly()) == length_hint(iter(calls))


def test_a_batch_of_the_host_and_one_of_the_device_are_the_same():
    first, second = net_there(False), net_there(False)
    rules = SGD(lr=0.1), SGD(lr=0.1)
    for k in range(4):
        x, y = batch(k)
        there = first.device.put(x), first.device.put(y)
        assert first.step(*there, rules[0]) == second.step(x, y, rules[1])


def test_labels_that_are_none_leave_net_and_draws_as_they_were():
    net, rule = net_there(False), Adam(lr=0.1)
    for k in range(3):
        net.step(*batch(k), rule)
    before = [param.value.get() for param in net.params()]
    x, y = batch(3)
    with pytest.raises(DataError, match="labels from 0 to 2"):
        net.step(x, y + 3, rule)
    for param, value in zip(net.params(), before, strict=True):
        np.testing.assert_array_equal(param.value.get(), value)
    assert {state.step for state in rule.states()} == {3}
    net.step(x, y, rule)


def test_predictions_are_arrays_of_their_own():
    net = net_there(False)
    x, other = batch(0)[0], batch(1)[0]
    net.evaluate(x, batch(0)[1])
    first = [net.predict(x) for _ in range(3)]
    kept = first[-1].get()
    net.predict(other)
    np.testing.assert_array_equal(first[-1].get(), kept)
