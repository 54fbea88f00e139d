"""Accuracy, precision, recall and F-beta against counting; what a linked metric is shown."""

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
    IOU,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    FBeta,
    Metric,
    Precision,
    PrecisionScore,
    Recall,
    RecallScore,
)
from singanet.optimizer import SGD

rng = np.random.default_rng(4)


def by_sorting(x: Any, y: Any, k: int) -> list[float]:
    """Sort each row by (score descending, class ascending) and look for the label."""
    found = []
    for row, label in zip(x, y, strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        found.append(float(label in order[:k]))
    return found


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_against_sorting_with_many_ties(k: int) -> None:
    x = rng.integers(0, 3, (60, 5)).astype(np.float32)
    y = rng.integers(0, 5, 60)
    np.testing.assert_array_equal(Accuracy(k).forward(x, y), by_sorting(x, y, k))


def test_singas_value() -> None:
    x = np.array([[0.1, 0.3, 0.6], [0.3, 0.2, 0.5]])
    assert Accuracy().evaluate(x, np.array([1, 2])) == 0.5


@pytest.mark.parametrize("k", [1, 2])
def test_a_net_that_has_diverged_is_right_about_nothing(k: int) -> None:
    assert Accuracy(k).evaluate(np.full((4, 3), np.nan), np.array([0, 1, 2, 0])) == 0


def test_a_score_that_is_no_number_ranks_first() -> None:
    x = np.array([[1.0, np.nan, 0.5]])
    assert Accuracy(1).evaluate(x, np.array([0])) == 0
    assert Accuracy(2).evaluate(x, np.array([0])) == 1


def test_bad_targets() -> None:
    x = np.zeros((3, 4))
    with pytest.raises(DataError, match="label 4 at index 2"):
        Accuracy().evaluate(x, np.array([0, 1, 4]))
    with pytest.raises(DataError, match="integer labels"):
        Accuracy().evaluate(x, np.zeros(3))
    with pytest.raises(ShapeError, match=r"received labels of shape \(2,\)"):
        Accuracy().evaluate(x, np.zeros(2, int))
    with pytest.raises(ShapeError, match=r"shape \(2, 4\) for outputs of shape \(3, 4\)"):
        Accuracy().evaluate(x, np.zeros((2, 4)))
    with pytest.raises(DataError, match="classes"):
        Accuracy().evaluate(np.zeros(3), np.zeros(3, int))


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_bad_top_k(k: Any) -> None:
    with pytest.raises(ArgumentError, match="Accuracy, top_k: expected an int of at least 1"):
        Accuracy(top_k=k)


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


X = np.array([[0.7, 0.2, 0.1], [0.2, 0.4, 0.5], [0.2, 0.4, 0.4]], np.float32)


def test_singas_values() -> None:
    precision, recall = Precision(top_k=2), Recall(top_k=2)
    y = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(precision.forward(X, y), [0.5, 1, 0])
    assert precision.evaluate(X, y) == pytest.approx(0.5)
    y = np.array([[1, 0, 1], [1, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(recall.forward(X, y), [0.5, 2 / 3, 0])
    assert recall.evaluate(X, y) == pytest.approx(7 / 18)


def test_ties_go_to_the_lowest_class() -> None:
    y = np.array([[0, 1, 0], [0, 0, 1]])
    x = np.zeros((2, 3))
    np.testing.assert_array_equal(Precision(1).forward(x, y), [0, 0])
    np.testing.assert_array_equal(Precision(2).forward(x, y), [0.5, 0])
    np.testing.assert_array_equal(Recall(2).forward(x, y), [1, 0])


def test_integer_scores_of_any_sign() -> None:
    x = np.array([[0, 200, 3]], np.uint8)
    assert Precision(1).evaluate(x, np.array([[0, 1, 0]])) == 1


def test_a_row_without_a_label_counts_as_zero() -> None:
    y = np.array([[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(Recall(3).forward(X[:2], y), [0, 1])


def test_k_beyond_the_classes() -> None:
    y = np.array([[1, 1, 0]])
    assert Precision(6).evaluate(X[:1], y) == pytest.approx(2 / 6)
    assert Recall(6).evaluate(X[:1], y) == 1


@pytest.mark.parametrize("metric", [Precision, Recall])
def test_bad_input(metric: Any) -> None:
    with pytest.raises(ArgumentError, match="top_k"):
        metric(top_k=0)
    with pytest.raises(ShapeError, match=r"shape \(3,\) for outputs of shape \(3, 3\)"):
        metric().evaluate(X, np.zeros(3, int))
    with pytest.raises(ShapeError, match="outputs of shape"):
        metric().evaluate(X[0], X[0])
    with pytest.raises(DataError, match="rows of 0 and 1"):
        metric().evaluate(X, np.full((3, 3), "a"))


@given(seed=st.integers(0, 999), beta=st.sampled_from([0.5, 1.0, 2.0]))
def test_precision_recall_and_f_beta_by_counting(seed: int, beta: float) -> None:
    draws = np.random.default_rng(seed)
    n, classes = int(draws.integers(1, 15)), int(draws.integers(2, 5))
    x, y = draws.random((n, classes)), draws.integers(0, 2, (n, classes))
    counts = []
    for c in range(classes):
        taken, there = x[:, c] > 0.5, y[:, c] == 1
        counts.append((int((taken & there).sum()), int(taken.sum()), int(there.sum())))

    def ratio(top: float, bottom: float) -> float:
        return top / bottom if bottom else 0.0

    def scores(tp: int, taken: int, there: int) -> tuple[float, float, float, float]:
        p, r = ratio(tp, taken), ratio(tp, there)
        f = ratio((1 + beta**2) * p * r, beta**2 * p + r)
        return p, r, f, ratio(tp, taken + there - tp)

    each = np.array([scores(*count) for count in counts])
    together = scores(*np.sum(counts, axis=0))
    occurs = [taken + there > 0 for _, taken, there in counts]
    macro = each[occurs].mean(axis=0) if any(occurs) else np.zeros(4)
    for k, make in enumerate((PrecisionScore, RecallScore, lambda *a: FBeta(beta, *a), IOU)):
        np.testing.assert_allclose(_result(make(None, 0.5), x, y), each[:, k])
        assert make("micro", 0.5).evaluate(x, y) == pytest.approx(together[k])
        assert make("macro", 0.5).evaluate(x, y) == pytest.approx(macro[k])


def _result(metric: Metric, x: Any, y: Any) -> Any:
    metric.update(x, y)
    return metric.result()


def test_class_labels_are_one_hot_predictions() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    taken, there = np.eye(3)[x.argmax(axis=1)], np.eye(3)[y]
    for make in (PrecisionScore, RecallScore, F1, IOU, lambda *a: FBeta(2.0, *a)):
        for average in ("macro", "micro", "weighted"):
            want = make(average, 0.5).evaluate(taken, there)
            assert make(average).evaluate(x, y) == pytest.approx(want)
    # By hand, two of three predicted are right, two of four there are found.
    x, y = np.array([0.9, 0.8, 0.7, 0.1, 0.2]), np.array([1, 1, 0, 1, 1])
    assert PrecisionScore(threshold=0.5).evaluate(x, y) == pytest.approx(2 / 3)
    assert RecallScore(threshold=0.5).evaluate(x[:, None], y) == pytest.approx(2 / 4)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="above 0"):
        FBeta(0.0)
    with pytest.raises(ArgumentError, match="'macro', 'micro', 'weighted' or None"):
        PrecisionScore("binary")
    with pytest.raises(ArgumentError, match="threshold"):
        RecallScore(threshold=float("nan"))


@pytest.mark.slow
def test_the_mean_intersection_over_union_of_pixels_is_that_of_keras(rng: Any) -> None:
    keras = pytest.importorskip("keras")
    peer, ours = keras.metrics.MeanIoU(4, sparse_y_pred=False), IOU()
    for _ in range(3):
        x, y = rng.normal(size=(2, 5, 6, 4)), rng.integers(0, 4, (2, 5, 6))
        peer.update_state(y, x)
        ours.update(x, y)
    assert ours.result() == pytest.approx(float(peer.result()), rel=1e-6)
