"""Confusion matrix, F1 and area under the curve against counting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.metric import AUC, F1, IOU, ConfusionMatrix, PrecisionScore, RecallScore

rng = np.random.default_rng(0)


def scores_for(taken: list[int], classes: int) -> Any:
    """Scores whose highest is at ``taken``."""
    return np.eye(classes)[taken] + 0.1 * rng.random((len(taken), classes))


def test_confusion_by_hand() -> None:
    metric = ConfusionMatrix()
    x = scores_for([0, 1, 1, 2], 3)
    metric.update(x, np.array([0, 1, 2, 2]))
    np.testing.assert_array_equal(metric.result(), [[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    metric.update(x[:2], np.array([2, 2]))
    np.testing.assert_array_equal(metric.result(), [[1, 0, 0], [0, 1, 0], [1, 2, 1]])
    assert metric.evaluate(x, np.array([0, 1, 2, 2])) == 0.75
    with pytest.raises(ShapeError, match="3 classes, as in"):
        metric.update(np.zeros((2, 4)), np.array([0, 1]))
    with pytest.raises(DataError, match="label 3 at index 0"):
        metric.update(x, np.array([3, 0, 0, 0]))


def test_confusion_result_is_a_copy() -> None:
    metric = ConfusionMatrix()
    metric.update(np.eye(2), np.array([0, 1]))
    metric.result()[:] = 9
    np.testing.assert_array_equal(metric.result(), np.eye(2))


@given(data=st.data())
def test_f1_by_counting(data: Any) -> None:
    size = data.draw(st.integers(1, 12))
    draw = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    taken, wanted = data.draw(draw), data.draw(draw)
    pairs = list(zip(taken, wanted, strict=True))
    each = []
    for c in range(4):
        tp = sum(t == w == c for t, w in pairs)
        fp, fn = taken.count(c) - tp, wanted.count(c) - tp
        each.append(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0)
    occurring = {*taken, *wanted}
    x, y = scores_for(taken, 4), np.array(wanted)
    assert F1().evaluate(x, y) == pytest.approx(sum(each) / len(occurring))
    right = sum(t == w for t, w in pairs)
    assert F1("micro").evaluate(x, y) == pytest.approx(right / size)
    weighted = sum(each[c] * wanted.count(c) for c in range(4)) / size
    assert F1("weighted").evaluate(x, y) == pytest.approx(weighted)


def test_f1_of_labels_by_threshold() -> None:
    x = np.array([[0.9, 0.2, 0.1], [0.6, 0.7, 0.5], [0.1, 0.8, 0.2]])
    y = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    # Class 0: 2 of 2 found. Class 1: 1 found, 1 missed, 1 too many. Class 2 occurs nowhere.
    assert F1(threshold=0.5).evaluate(x, y) == pytest.approx((1 + 0.5) / 2)
    assert F1("micro", threshold=0.5).evaluate(x, y) == pytest.approx(6 / 8)
    assert F1(threshold=0.5).evaluate(x, 0 * y) == 0


def test_bad_f1() -> None:
    with pytest.raises(ArgumentError, match="'macro', 'micro', 'weighted'"):
        F1("best")
    with pytest.raises(ShapeError, match="Accuracy"):
        F1(threshold=0.5).evaluate(np.zeros((2, 3)), np.zeros(2, int))
    metric = F1()
    metric.update(np.eye(2), np.array([0, 1]))
    with pytest.raises(ShapeError, match="2 classes, as in"):
        metric.update(np.eye(3), np.array([0, 1, 2]))


@given(
    pairs=st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=20).filter(
        lambda pairs: len({positive for _, positive in pairs}) == 2
    )
)
def test_auc_counts_pairs(pairs: list[tuple[int, bool]]) -> None:
    yes = [score for score, positive in pairs if positive]
    no = [score for score, positive in pairs if not positive]
    won = sum((a > b) + 0.5 * (a == b) for a in yes for b in no) / (len(yes) * len(no))
    x, y = np.array([float(s) for s, _ in pairs]), np.array([p for _, p in pairs])
    assert AUC().evaluate(x, y) == pytest.approx(won)
    column = np.stack([np.zeros(len(x)), x], axis=1)
    assert AUC().evaluate(column, y[:, None].astype(float)) == pytest.approx(won)


@given(
    pairs=st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=20).filter(
        lambda pairs: len({positive for _, positive in pairs}) == 2
    )
)
def test_average_precision_steps_down_the_scores(pairs: list[tuple[int, bool]]) -> None:
    yes, area, before = sum(positive for _, positive in pairs), 0.0, 0
    for threshold in sorted({score for score, _ in pairs}, reverse=True):
        taken = [positive for score, positive in pairs if score >= threshold]
        area += (sum(taken) - before) / yes * sum(taken) / len(taken)
        before = sum(taken)
    x, y = np.array([float(s) for s, _ in pairs]), np.array([p for _, p in pairs])
    assert AUC("pr").evaluate(x, y) == pytest.approx(area)
    column = np.stack([np.zeros(len(x)), x], axis=1)
    assert AUC("pr").evaluate(column, y) == pytest.approx(area)


@pytest.mark.parametrize("curve", ["roc", "pr"])
def test_auc_of_classes_is_the_mean_of_each_against_the_rest(curve: str) -> None:
    rng = np.random.default_rng(3)
    p, y = rng.dirichlet(np.ones(4), 60), rng.integers(0, 3, 60)
    each = [AUC(curve).evaluate(p[:, k].copy(), y == k) for k in range(3)]
    metric = AUC(curve, "macro")
    other = AUC(curve, "macro")
    for part in (slice(0, 20), slice(20, 35)):
        metric.update(p[part], y[part, None])
    other.update(p[35:], y[35:])
    metric.merge(other.state())
    assert metric.result() == pytest.approx(np.mean(each))
    assert metric.linked
    assert not AUC(curve).linked


def test_bad_auc_of_classes() -> None:
    metric = AUC(average="macro")
    for x, y in ((np.zeros((2, 1)), np.zeros(2, int)), (np.zeros(2), np.zeros(2, int))):
        with pytest.raises(ShapeError, match=r"\(B, C\)"):
            metric.update(x, y)
    for y in (np.array([0, 3]), np.array([0.0, 1.0]), np.array([-1, 0])):
        with pytest.raises(DataError, match="integer labels from 0 to 2"):
            metric.update(np.zeros((2, 3)), y)
    assert math.isnan(metric.evaluate(np.zeros((2, 3)), np.array([1, 1])))
    for wrong in ({"curve": "ROC"}, {"average": "micro"}):
        with pytest.raises(ArgumentError, match=rf"AUC\({next(iter(wrong))}=\)"):
            AUC(**wrong)


def test_auc_that_is_not_defined() -> None:
    assert math.isnan(AUC().evaluate(np.ones(3), np.ones(3)))
    assert math.isnan(AUC().evaluate(np.ones(0), np.ones(0)))
    assert math.isnan(AUC().evaluate(np.array([np.nan, 1.0]), np.array([0, 1])))


def test_bad_auc() -> None:
    with pytest.raises(DataError, match="labels 0 and 1"):
        AUC().evaluate(np.zeros(2), np.array([0, 2]))
    for x, y in ((np.zeros((2, 3)), np.zeros(2)), (np.zeros(2), np.zeros(3))):
        with pytest.raises(ShapeError, match=r"\(B, 2\)"):
            AUC().evaluate(x, y)


def test_auc_of_probabilities_near_the_ends() -> None:
    """Of two columns x₁ − x₀ of float32 has no digits left for 1e-9; scikit-learn has p₁ alone."""
    labels = np.array([0, 0, 1, 1])
    small = np.array([1e-9, 2e-9, 3e-9, 4e-9], np.float32)
    for p in (np.stack([1 - small, small], 1), np.stack([small[::-1], 1 - small[::-1]], 1)):
        assert AUC().evaluate(p.astype(np.float32), labels) == 1.0
    tiny = np.array([4e-30, 1e-30, 3e-30, 2e-30])
    assert AUC().evaluate(np.stack([1 - tiny, tiny], 1), np.array([1, 0, 1, 1])) == 1.0
    # Scores of which the differences are equal are tied, be they large or small.
    assert AUC().evaluate(np.array([[1.0, 2.0], [1e6, 1e6 + 1]]), np.array([0, 1])) == 0.5
    ends = np.array([[0.0, np.inf], [0.0, np.inf], [0.0, -np.inf], [0.0, 1.0]])
    assert AUC().evaluate(ends, np.array([1, 0, 0, 1])) == 0.625


def test_auc_of_softmax_outputs_is_that_of_scores() -> None:
    rng = np.random.default_rng(0)
    scores = np.stack([np.zeros(400), rng.normal(-17, 3, 400)], 1)
    labels = (rng.random(400) < 0.4).astype(int)
    e = np.exp(scores)
    p = (e / e.sum(1, keepdims=True)).astype(np.float32)
    assert AUC().evaluate(p, labels) == pytest.approx(
        AUC().evaluate(scores[:, 1], labels), abs=1e-6
    )


@pytest.mark.parametrize("make", [F1, IOU, PrecisionScore, RecallScore])
@pytest.mark.parametrize("labels", [1, 3])
def test_of_maps_the_labels_are_the_channels(make: Any, labels: int) -> None:
    """A picture (labels, H, W) counts as its pixels would, each a row of labels."""
    draw = np.random.default_rng(3)
    x = draw.random((5, labels, 4, 6), np.float32)
    y = (draw.random((5, labels, 4, 6)) > 0.6).astype(np.int64)
    pixels = [each.transpose(0, 2, 3, 1).reshape(-1, labels) for each in (x, y)]
    for average in ("macro", "micro", "weighted", None):
        maps, rows = make(average=average, threshold=0.5), make(average=average, threshold=0.5)
        maps.update(x, y)
        rows.update(*pixels)
        np.testing.assert_array_equal(maps.result(), rows.result())
        # By counting, label by label.
        if average is None:
            assert maps.result().shape == (labels,)
            taken, wanted = pixels[0] > 0.5, pixels[1] == 1
            both, either = (taken & wanted).sum(0), (taken | wanted).sum(0)
            counted = {
                F1: 2 * both / (taken.sum(0) + wanted.sum(0)),
                IOU: both / either,
                PrecisionScore: both / taken.sum(0),
                RecallScore: both / wanted.sum(0),
            }
            np.testing.assert_allclose(maps.result(), counted[make], rtol=1e-12)
    weighted, repeated = make(threshold=0.5), make(threshold=0.5)
    weighted.update(x, y, np.array([2.0, 0, 1, 1, 3]))
    twice = [0, 0, 2, 3, 4, 4, 4]
    repeated.update(x[twice], y[twice])
    assert weighted.result() == pytest.approx(repeated.result(), rel=1e-12)


@pytest.mark.parametrize("curve", ["roc", "pr"])
@pytest.mark.parametrize("seed", range(3))
def test_auc_of_several_labels_is_sklearns_mean(curve, seed):
    """In parts and weighed; a label that is always 0 or always 1 has no AUC."""
    sk = pytest.importorskip("sklearn.metrics", reason="compares: pip install '.[peers]'")
    rng = np.random.default_rng(seed)
    scores, y = rng.normal(size=(40, 5)).round(1), rng.integers(0, 2, (40, 5))
    y[:, 3] = 1
    weight = rng.uniform(0, 2, 40)
    judge = sk.roc_auc_score if curve == "roc" else sk.average_precision_score
    there = [0, 1, 2, 4]
    for own in (None, weight):
        metric, other = AUC(curve, average="macro"), AUC(curve, average="macro")
        for part in (slice(0, 7), slice(7, 30)):
            metric.update(scores[part], y[part], *(() if own is None else (own[part],)))
        rest = slice(30, 40)
        other.update(scores[rest], y[rest].astype(float), *(() if own is None else (own[rest],)))
        metric.merge(other.state())
        wanted = judge(y[:, there], scores[:, there], average="macro", sample_weight=own)
        assert metric.result() == pytest.approx(wanted, rel=1e-12)
    assert np.isnan(AUC(curve, average="macro").evaluate(scores, np.ones_like(y)))
    with pytest.raises(DataError, match="labels 0 and 1"):
        AUC(curve, average="macro").update(scores, y * 2)


@pytest.mark.parametrize("loss", ["SigmoidCrossEntropy", "BinaryCrossEntropy"])
def test_auc_of_several_labels_in_a_fit_is_keras(loss):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype("f4"), rng.integers(0, 2, (60, 3)).astype("f4")
    parts = [singanet.layers.Dense("fc", 3, input_sample_shape=(4,))]
    if loss == "BinaryCrossEntropy":
        parts.append(singanet.layers.Activation("s", "sigmoid"))
    net = singanet.FeedForwardNet(parts, seed=0)
    made = getattr(singanet.loss, loss)()
    net.compile(singanet.optimizer.SGD(0.0), made, {"auc": AUC(average="macro")})
    peer = keras.metrics.AUC(multi_label=True, num_labels=3, num_thresholds=5000)
    peer.update_state(y, net.predict(x))
    history = net.fit(x, y, batch_size=16, verbose=False)
    assert history["auc"] == [pytest.approx(float(peer.result()), abs=1e-3)]
