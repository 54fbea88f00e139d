"""Accuracy of yes-or-no outputs, and what a linked metric is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, DataError, ShapeError, SingaNetError
from singanet.layers import Activation, Dense, Input
from singanet.loss import BinaryCrossEntropy, MultiLoss, SigmoidCrossEntropy, SquaredError
from singanet.metric import (
    F1,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    Metric,
)
from singanet.optimizer import SGD

rng = np.random.default_rng(1)


@given(data=st.data())
def test_by_counting(data: Any) -> None:
    n, labels = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    draws = np.random.default_rng(data.draw(st.integers(0, 999)))
    x, y = draws.random((n, labels)), draws.integers(0, 2, (n, labels))
    threshold = data.draw(st.sampled_from([0.3, 0.5]))
    right = [
        [(a > threshold) == bool(b) for a, b in zip(p, t, strict=True)]
        for p, t in zip(x, y, strict=True)
    ]
    metric, strict = BinaryAccuracy(threshold), BinaryAccuracy(threshold, all_labels=True)
    for part in (slice(0, n // 2), slice(n // 2, n)):
        metric.update(x[part], y[part].astype(np.float32))
        strict.update(x[part], y[part].astype(bool))
    assert metric.result() == pytest.approx(np.mean([sum(row) / labels for row in right]))
    assert strict.result() == pytest.approx(np.mean([all(row) for row in right]))


def test_shapes() -> None:
    x = np.array([0.9, 0.2, 0.7])
    for shape in ((3,), (3, 1)):
        assert BinaryAccuracy().evaluate(x.reshape(shape), np.array([1, 0, 0])) == pytest.approx(
            2 / 3
        )
    assert BinaryAccuracy().evaluate(np.full((2, 3, 4), 0.7), np.ones((2, 3, 4))) == 1.0
    with pytest.raises(ShapeError, match="Accuracy"):
        BinaryAccuracy().evaluate(np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(DataError, match="0 or 1; received 2"):
        BinaryAccuracy().evaluate(x, np.array([0, 1, 2]))
    with pytest.raises(DataError, match="0 or 1"):
        BinaryAccuracy().evaluate(x, np.array([0.0, 1.0, np.nan]))
    with pytest.raises(ArgumentError, match="threshold"):
        BinaryAccuracy(threshold="half")  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", [Accuracy(), Accuracy(2), F1(), ConfusionMatrix()])
@pytest.mark.parametrize(
    "targets", [np.zeros((9, 1), np.float32), np.zeros(9, int), np.zeros((9, 1), int)]
)
def test_one_column_has_no_highest_class(metric: Metric, targets: Any) -> None:
    """Accuracy and F1 of (N, 1) float targets were 1.0 whatever the net said."""
    with pytest.raises(SingaNetError, match=r"BinaryAccuracy\(\)"):
        metric.update(rng.normal(size=(9, 1)), targets)


@pytest.mark.parametrize("metric", [Accuracy(), F1(), ConfusionMatrix()])
@pytest.mark.parametrize("row", [[1, 0, 1], [0, 0, 0]])
def test_rows_of_several_labels_have_no_class(metric: Metric, row: Any) -> None:
    """The first label was taken for the only one."""
    y = np.array([[0, 1, 0], row])
    with pytest.raises(DataError, match="at index 1; .*BinaryAccuracy"):
        metric.update(rng.normal(size=(2, 3)), y)
    metric.update(rng.normal(size=(2, 3)), np.array([[0.2, 0.5, 0.3], [2.0, 1.0, 3.0]]))


def classifier(*last: Any) -> Any:
    return singanet.FeedForwardNet(
        [Dense("a", 6, input_sample_shape=(4,)), Activation("relu"), Dense("b", 1), *last], seed=3
    )


def test_scores_and_probabilities_are_judged_alike() -> None:
    """A threshold of 0.5 on scores was that of a probability of 0.62."""
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 * rng.normal(size=(80, 1)) > 0).astype(np.float32)
    metrics = {"accuracy": BinaryAccuracy, "f1": lambda: F1(threshold=0.5)}
    ends = [
        (classifier(), SigmoidCrossEntropy()),
        (classifier(Activation("p", "sigmoid")), BinaryCrossEntropy()),
    ]
    seen = []
    for net, loss in ends:
        net.compile(SGD(lr=0.5), loss, {name: make() for name, make in metrics.items()})
        history = net.fit(x, y, epochs=3, batch_size=16, validation_split=0.25, verbose=False)
        p = net.predict(x)
        found = net.evaluate(x, y)
        assert found.metric == ((p > 0.5) == (y > 0.5)).mean()
        assert found.logs == pytest.approx(net.evaluate(x, y, batch_size=7).logs)
        assert net.test_on_batch(x, y) == pytest.approx(found.logs)
        assert net.train(x, y)[1][1] == found.metric
        assert net.step(x, y, SGD(lr=0.0))[1] == found.metric
        assert net.step(x, y, SGD(lr=0.0))[1] == found.metric
        seen.append(history)
    for name in seen[0]:
        np.testing.assert_allclose(seen[0][name], seen[1][name], rtol=1e-4, atol=1e-6)


def test_each_output_goes_through_the_link_of_its_own_loss() -> None:
    x = Input("x", (4,))
    net = singanet.FeedForwardNet(inputs=x, outputs=[Dense("a", 2)(x), Dense("b", 2)(x)], seed=0)
    loss = MultiLoss({"a": SigmoidCrossEntropy(), "b": SquaredError()})
    net.compile("sgd", loss, {name: BinaryAccuracy(0.6) for name in "ab"})
    data = rng.normal(size=(30, 4)).astype(np.float32)
    y = {name: rng.integers(0, 2, (30, 2)).astype(np.float32) for name in "ab"}
    out = net.forward(False, data)
    p = {"a": 1 / (1 + np.exp(-out["a"])), "b": out["b"]}
    for size in (None, 11):
        logs = net.evaluate(data, y, batch_size=size).logs
        for name in "ab":
            want = ((p[name] > 0.6) == (y[name] > 0.5)).mean()
            assert logs[f"{name}_binary_accuracy"] == pytest.approx(want)
