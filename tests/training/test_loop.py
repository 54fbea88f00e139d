"""One pass over the data."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.data import ArrayLoader
from singanet.models import build
from singanet.optimizer import SGD
from singanet.training import evaluate, fit_epoch


@pytest.fixture
def data(rng):
    return rng.standard_normal((10, 4)).astype(np.float32), rng.integers(0, 3, 10)


def test_evaluation_is_the_mean_over_samples_whatever_the_batches(data):
    net = build("mlp", (4,), 3, seed=0)
    whole = net.evaluate(*data)
    for size in (1, 3, 4, 10):
        result = evaluate(net, ArrayLoader(*data, size, shuffle=False))
        assert result.samples == 10
        assert result.loss == pytest.approx(whole[0], rel=1e-6)
        assert result.metric == pytest.approx(whole[1])


def test_training_is_the_steps_one_after_the_other(data):
    x, y = data
    net, same = build("mlp", (4,), 3, seed=0), build("mlp", (4,), 3, seed=0)
    seen = []
    result = fit_epoch(net, [(x[:7], y[:7]), (x[7:], y[7:])], SGD(lr=0.1), seen.append)
    optimizer = SGD(lr=0.1)
    first = same.step(x[:7], y[:7], optimizer)
    second = same.step(x[7:], y[7:], optimizer)
    for a, b in zip(net.param_values(), same.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert result.loss == pytest.approx((7 * first[0] + 3 * second[0]) / 10)
    assert result.metric == pytest.approx((7 * first[1] + 3 * second[1]) / 10)
    assert [r.samples for r in seen] == [7, 10]
    assert seen[-1] == result


def test_a_net_without_a_metric_has_none(data):
    net = build("mlp", (4,), 3, seed=0)
    net.metric = None
    assert evaluate(net, [data]).metric is None
    assert fit_epoch(net, [data], SGD(lr=0.1)).metric is None


def test_gradients_are_seen_layer_by_layer_before_they_are_applied(data):
    net = build("mlp", (4,), 3, seed=0)
    before = net["fc3"].params["bias"].value.copy()
    layers = []

    def look(item):
        layers.append(item.layer)
        if item.layer == "fc3":
            np.testing.assert_array_equal(item.values[1], before)

    fit_epoch(net, [data], SGD(lr=0.1), on_layer=look)
    assert layers == ["fc3", "relu2", "fc2", "relu1", "fc1"]
