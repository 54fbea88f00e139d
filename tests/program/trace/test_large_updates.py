"""Recorded updates of large parameters take no scratch of their size, and do what the layers do."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import (
    SGD,
    Adadelta,
    AdaGrad,
    Adam,
    Adamax,
    AdamW,
    AMSGrad,
    ClipByGlobalNorm,
    Lion,
    RMSProp,
)
from singanet.optimizer.schedules import Exponential

WIDE, TABLE = 1 << 18, 4 * 4 << 18

RULES = {
    "sgd": lambda: SGD(lr=0.1),
    "decay": lambda: SGD(lr=0.1, weight_decay=0.01),
    "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "nesterov": lambda: SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda: Adam(lr=Exponential(0.01, 2, 0.5)),
    "adamw": lambda: AdamW(lr=0.01),
    "adamax": lambda: Adamax(lr=0.01),
    "amsgrad": lambda: AMSGrad(lr=0.01),
    "adagrad": lambda: AdaGrad(lr=0.01),
    "adadelta": lambda: Adadelta(lr=0.01),
    "rmsprop": lambda: RMSProp(lr=0.01),
    "lion": lambda: Lion(lr=0.01),
    "l2": lambda: SGD(lr=0.1, regularizer=0.01),
    "bounded": lambda: Adam(lr=0.01, constraint=1.0),
    "clipped": lambda: ClipByGlobalNorm(Lion(lr=0.01), 0.1),
}


def net_of():
    net = FeedForwardNet(
        [Dense("fc", WIDE, use_bias=False, input_sample_shape=(4,))], loss=SquaredError(), seed=0
    )
    return net


OF_EACH_KIND = {"sgd", "adam", "bounded", "clipped"}


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=[] if r in OF_EACH_KIND else pytest.mark.slow) for r in RULES]
)
def test_a_rule_takes_no_scratch_of_the_size_of_a_table(rule):
    # The gradient, and what the loss has of outputs.
    assert net_of().memory(1, RULES[rule]()).parts["arena"] < 1.8 * TABLE


@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_step_by_the_layers(rule):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 2, WIDE))
    found = []
    for recorded in (True, False):
        net, own = net_of(), RULES[rule]()
        net.programs.enabled = net.programs.at_once = recorded
        for xs, ys in zip(x.astype(np.float32), y.astype(np.float32), strict=True):
            net.step(xs, ys, own)
        assert not net.programs.refusals
        assert not net.programs.notes
        found.append(net["fc"].params["weight"].value)
    np.testing.assert_array_equal(*found)
