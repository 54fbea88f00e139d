"""Kernels timed alone: what they are given, how often they run, what is not counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, BatchNormalization, Conv2D, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import cpu_ops
from singanet.ops.costs import Case
from singanet.ops.window import Window
from singanet.program import tuning as timing
from singanet.program.prediction.compiled import ConstantNet

CASE = Case("forward", (2, 4, 6, 6), (8, 4, 3, 3), Window((3, 3), (1, 1), ((1, 1), (1, 1))))


@pytest.fixture
def runs(monkeypatch, path):
    """How often each route runs, and seconds of its runs, which a clock of the test's tells."""
    told = Counter()
    told.seconds, told.first, told.now = {}, {}, 0.0

    class Run:
        def __init__(self, ops, name, operands, case, route, memory):
            self.route = route

        def __call__(self):
            told[self.route] += 1
            seconds = told.first if told[self.route] == 1 else told.seconds
            told.now += seconds.get(self.route, told.seconds.get(self.route, 0.5))

    monkeypatch.setattr(timing, "_Alone", Run)
    monkeypatch.setattr(timing.time, "thread_time", lambda: told.now)
    return told


def timed(runs, **seconds):
    runs.seconds = seconds
    met = timing.Met("conv2d", (), 1, dict.fromkeys(seconds, 1.0))
    return timing.Stopwatch(cpu_ops(), 1).seconds(CASE, met)


def test_a_long_kernel_that_is_far_behind_runs_once(runs):
    assert timed(runs, direct=0.01, winograd=0.02) == pytest.approx(
        {"direct": 0.01, "winograd": 0.02}
    )
    assert (runs["direct"], runs["winograd"]) == (1, 1)


def test_two_that_are_close_run_twice(runs):
    timed(runs, winograd=0.024, direct=0.02, product=0.04)
    assert (runs["direct"], runs["winograd"], runs["product"]) == (2, 2, 1)


def test_another_that_is_slower_than_the_estimate_is_not_run_again(runs):
    timed(runs, direct=0.02, winograd=0.0215)
    assert (runs["direct"], runs["winograd"]) == (1, 1)
    timed(runs, winograd=0.0215, direct=0.02)
    assert (runs["direct"], runs["winograd"]) == (3, 3)


def test_short_ones_run_more_often_and_the_first_run_does_not_count(runs):
    runs.first = {"direct": 0.003, "winograd": 0.0001}
    taken = timed(runs, winograd=0.0011, direct=0.001)
    assert taken == pytest.approx({"direct": 0.001, "winograd": 0.0011})
    assert 5 <= runs["direct"] == runs["winograd"] <= 12


def test_other_data_go_through_the_caches_before_each_run(runs):
    timed(runs, direct=0.02, winograd=0.024)
    assert runs[""] == runs["direct"] + runs["winograd"]


def net():
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    made.add(Conv2D("first", 8, 3, input_sample_shape=(3, 6, 6)))
    made.add(BatchNormalization("norm"))
    made.add(Activation("relu"))
    made.add(Conv2D("second", 4, 3))
    made.add(Conv2D("third", 4, 3))
    made.add(Flatten("flat"))
    return made


def test_operands_lie_as_in_the_net(path):
    feed = {"first": np.ones((2, 3, 6, 6), np.float32)}
    met = timing.cases_met(net(), lambda recorder: recorder.rehearsed_step(feed, None))
    by_weight = {(case.kernel, case.weight): each for case, each in met.items()}
    second = by_weight["forward", (4, 8, 3, 3)]
    (x, weight, *_), _ = second.operands
    assert (second.name, x.shape, weight.shape) == ("conv2d", (2, 8, 6, 6), (4, 8, 3, 3))
    assert x.strides[1] == x.itemsize, "channels come last after the first convolution"
    assert weight.flags.c_contiguous
    (dy, *_), _ = by_weight["data", (4, 4, 3, 3)].operands
    assert dy.shape == (2, 4, 6, 6)


def test_a_constant_weight_is_laid_out_before(path):
    made = net()
    constant = ConstantNet(made, made.device)
    feed = {"first": np.ones((2, 3, 6, 6), np.float32)}
    met = timing.cases_met(constant, lambda recorder: constant.record(recorder, feed))
    assert {case.kernel for case in met} == {"constant"}
    for case, each in met.items():
        given = cpu_ops(), each.name, each.operands, case, "direct"
        alone = timing._Alone(*given, lambda route, nbytes: np.zeros(nbytes, np.uint8))
        # The net's input is brought into the order of channels last, as at each prediction.
        assert len(alone._calls) == (2 if case.x[1] == 3 else 1)
        alone()
