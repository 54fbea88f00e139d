"""Copies and pickles of executors go on as their source does, and leave it alone."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from singanet import Executor
from singanet.data import ArrayLoader
from singanet.executor import from_loader, gradients
from singanet.layers import BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 30)
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}


def executor():
    x, y = from_loader(ArrayLoader(X, Y, 8, seed=3))
    body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", 5)(x)))
    top = Dense("b", 3)
    scores = top(body)
    loss, right = SoftmaxCrossEntropy()(scores, y), Accuracy()(scores, y)
    programs = {
        "all": [loss, right, Adam(lr=0.05).minimize(loss, ["a/weight", "a/bias"])],
        "top": [loss, SGD(lr=0.1, momentum=0.9).minimize(loss, top)],
        "look": [loss, right],
        "slope": gradients(loss, ["a/weight"]),
    }
    return Executor(programs, seed=1)


def run(one, count):
    names = [name for _ in range(count) for name in one.programs]
    return [np.concatenate([np.ravel(v) for v in one.run(n) if v is not None]) for n in names]


def expect_same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_goes_on_and_its_source_too(way, steps):
    """In the middle of an epoch, recorded or not yet, with metrics and gradients."""
    one, twin = executor(), executor()
    run(one, steps), run(twin, steps)
    made = WAYS[way](one)
    wanted = run(twin, 4)
    expect_same(run(made, 4), wanted)
    expect_same(run(one, 4), wanted)
    for some in (one, made):
        expect_same(some.net.param_values(), twin.net.param_values())
    made.report("all")


def test_a_copy_has_an_optimizer_of_its_own():
    one = executor()
    run(one, 2)
    made, before = copy.deepcopy(one), [value.copy() for value in one.net.param_values()]
    run(made, 3)
    expect_same(one.net.param_values(), before)
    assert any(
        not np.array_equal(mine, theirs)
        for mine, theirs in zip(one.net.param_values(), made.net.param_values(), strict=True)
    )
