"""Optimizers by name, and the course of their learning rate."""

import math

import numpy as np
import pytest

from singanet.commands.runs.optimizers import USUAL_RATES, make_optimizer
from singanet.errors import ArgumentError, UnknownNameError
from singanet.optimizer import SGD, Adam


def test_the_rate_rises_in_a_line_and_falls_as_half_a_cosine():
    rate = make_optimizer("sgd", 0.8, 0.0, steps=12, warm_up=4).lr
    assert [rate(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    for step in range(3, 13):
        assert rate(step) == pytest.approx(0.4 * (1 + math.cos(math.pi * (step - 3) / 9)))
    assert rate(12) == pytest.approx(0.0, abs=1e-12)
    assert rate(500) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("warm_up", [3, 7])
def test_a_run_that_is_all_warm_up_only_rises(warm_up):
    rate = make_optimizer("sgd", 1.0, 0.0, steps=3, warm_up=warm_up).lr
    assert [rate(step) for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_without_warm_up_the_first_step_is_at_the_peak():
    rate = make_optimizer("sgd", 1.0, 0.0, steps=1, warm_up=0).lr
    assert [rate(0), rate(1)] == pytest.approx([1.0, 0.0])


def test_the_first_step_of_sgd_is_by_hand():
    optimizer = make_optimizer("sgd", 0.5, 0.1, steps=10, warm_up=5)
    assert isinstance(optimizer, SGD)
    value, grad = np.array([2.0]), np.array([3.0])
    optimizer.update(["w"], [value], [grad])
    assert value[0] == pytest.approx(2.0 - 0.1 * (3.0 + 0.1 * 2.0))


def test_adam_goes_by_its_rate_whatever_the_gradient():
    optimizer = make_optimizer("adam", 0.5, 0.0, steps=10, warm_up=5)
    assert isinstance(optimizer, Adam)
    value, grad = np.array([2.0]), np.array([3.0])
    optimizer.update(["w"], [value], [grad])
    assert value[0] == pytest.approx(2.0 - 0.1, rel=1e-6)


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        make_optimizer("adan", 0.1, 0.0, 1, 0)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", USUAL_RATES)
def test_a_rate_that_is_not_a_positive_number_is_refused(name, lr):
    with pytest.raises(ArgumentError, match="--lr: expected a positive number"):
        make_optimizer(name, lr, 0.0, 1, 0)
