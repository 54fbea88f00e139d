from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.metric import F1, ConfusionMatrix


@pytest.mark.parametrize("batch_size", [1, 7, 50, 99])
def test_in_batches_as_in_one_go(build, data, batch_size):
    net = build()
    net.metric = F1()
    loss, score = net.evaluate(*data)
    got = net.evaluate(*data, batch_size=batch_size)
    assert got == (pytest.approx(loss, rel=1e-5), pytest.approx(score))
    whole = net.predict(data[0])
    parts = net.predict(data[0], batch_size=batch_size)
    assert parts.shape == whole.shape
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_over_a_source_of_batches(build, data):
    net = build()
    loader = ArrayLoader(*data, 16, shuffle=False)
    loss, score = net.evaluate(*data)
    assert net.evaluate(loader) == (pytest.approx(loss, rel=1e-5), score)
    np.testing.assert_allclose(net.predict(loader, batch_size=1), net.predict(data[0]), atol=1e-6)
    inputs = (data[0][k : k + 10] for k in range(0, 50, 10))
    np.testing.assert_allclose(net.predict(inputs, batch_size=1), net.predict(data[0]), atol=1e-6)


def test_evaluating_does_not_disturb_what_a_metric_gathers(build, data):
    net = build()
    net.metric.update(net.forward(False, data[0][:10]), data[1][:10])
    before = net.metric.result()
    net.evaluate(*data, batch_size=8)
    assert (net.metric.result(), net.metric.samples) == (before, 10)


def test_what_is_refused(build, data):
    net = build()
    for size in (0, -1, 2.5):
        with pytest.raises(ArgumentError, match="batch_size"):
            net.evaluate(*data, batch_size=size)
    with pytest.raises(ArgumentError, match="at least one batch"):
        net.predict(iter(()), batch_size=4)
    with pytest.raises(DataError, match="x: 50, y: 49"):
        net.evaluate(data[0], data[1][:49], batch_size=4)
    net.metric = ConfusionMatrix()
    with pytest.raises(ArgumentError, match="ConfusionMatrix"):
        net.evaluate(*data, batch_size=8)
    with pytest.raises(CallOrderError, match="neither"):
        singanet.FeedForwardNet().evaluate(*data)
