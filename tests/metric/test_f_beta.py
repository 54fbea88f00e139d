"""Precision, recall and F-beta against counting, and of class labels against one-hot rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.metric import F1, IOU, FBeta, Metric, PrecisionScore, RecallScore


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
