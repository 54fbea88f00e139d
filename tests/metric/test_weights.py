"""Weights of samples in metrics: as Keras has them, and as so many equal samples."""

from __future__ import annotations

import os

import numpy as np
import pytest

from singanet import metric
from singanet.errors import DataError, ShapeError
from singanet.metric import (
    AUC,
    F1,
    IOU,
    R2,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    FBeta,
    LabelErrorRate,
    MeanAbsoluteError,
    Perplexity,
    Precision,
    PrecisionScore,
    Recall,
    RecallScore,
    RootMeanSquaredError,
)

os.environ.setdefault("KERAS_BACKEND", "torch")

RNG = np.random.default_rng(0)
COUNT = 24
SCORES = RNG.random((COUNT, 4)).astype(np.float32)
SCORES /= SCORES.sum(axis=1, keepdims=True)
LABELS = RNG.integers(0, 4, COUNT)
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]
MULTI_HOT = RNG.integers(0, 2, (COUNT, 4))
YES = RNG.integers(0, 2, COUNT)
CHANCE = (0.3 * YES + 0.7 * RNG.random(COUNT)).round(1)
REAL, TARGET = RNG.standard_normal((2, COUNT, 3)).astype(np.float32)
STEPS, WORDS = RNG.standard_normal((COUNT, 5, 4)).astype(np.float32), RNG.integers(0, 4, (COUNT, 5))

CASES = {
    "Accuracy": (Accuracy, SCORES, LABELS),
    "Accuracy, top 2": (lambda: Accuracy(2), SCORES, LABELS),
    "Accuracy of steps": (Accuracy, STEPS, WORDS),
    "BinaryAccuracy": (BinaryAccuracy, CHANCE, YES),
    "BinaryAccuracy of labels": (BinaryAccuracy, SCORES, MULTI_HOT),
    "BinaryAccuracy, all labels": (lambda: BinaryAccuracy(0.3, True), SCORES, MULTI_HOT),
    "Precision": (lambda: Precision(2), SCORES, MULTI_HOT),
    "Recall": (lambda: Recall(2), SCORES, MULTI_HOT),
    "F1": (F1, SCORES, LABELS),
    "FBeta": (lambda: FBeta(2.0, "weighted", 0.3), SCORES, MULTI_HOT),
    "PrecisionScore": (lambda: PrecisionScore("weighted"), SCORES, LABELS),
    "RecallScore": (lambda: RecallScore("micro", 0.5), CHANCE, YES),
    "RecallScore of steps": (RecallScore, STEPS, WORDS),
    "ConfusionMatrix": (ConfusionMatrix, SCORES, LABELS),
    "MeanAbsoluteError": (MeanAbsoluteError, REAL, TARGET),
    "RootMeanSquaredError": (RootMeanSquaredError, REAL, TARGET),
    "R2": (R2, REAL, TARGET),
    "Perplexity": (lambda: Perplexity(1), STEPS, WORDS),
    "IOU": (IOU, SCORES, LABELS),
    "LabelErrorRate": (LabelErrorRate, STEPS, WORDS[:, :3]),
    "AUC": (AUC, CHANCE, YES),
    "AUC of two": (AUC, np.stack([1 - CHANCE, CHANCE], axis=1), YES),
    "AUC, pr": (lambda: AUC("pr"), CHANCE, YES),
    "AUC, macro": (lambda: AUC(average="macro"), SCORES, LABELS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_weight_is_so_many_samples(name):
    """Also where it is 0, and where some batches have none."""
    make, x, y = CASES[name]
    times = np.random.default_rng(1).integers(0, 4, COUNT)
    times[:6] = 1
    whole, other, many = make(), make(), make()
    whole.update(x[:6], y[:6])
    whole.update(x[6:9], y[6:9], times[6:9])
    other.update(x[9:], y[9:], times[9:].astype(np.float32))
    whole.merge(other.state())
    many.update(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0))
    np.testing.assert_allclose(whole.result(), many.result(), rtol=1e-6)
    alone = make().evaluate(x, y, times)
    np.testing.assert_allclose(alone, many.evaluate(x.repeat(times, 0), y.repeat(times, 0)), 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_weights_that_do_not_fit_are_refused(name):
    make, x, y = CASES[name]
    own = make()
    for weight, error in (
        (np.ones(COUNT - 1), ShapeError),
        (np.ones(()), ShapeError),
        (np.ones((COUNT, 9)), ShapeError),
        (-np.ones(COUNT), DataError),
        (np.full(COUNT, np.nan), DataError),
        (np.array(["1"] * COUNT), DataError),
    ):
        with pytest.raises(error, match="sample_weight"):
            own.update(x, y, weight)
    assert not own.samples


def test_all_metrics_take_weights():
    """Those that are not here are of several kinds, or of no own."""
    concrete = {name for name in metric.__all__ if not getattr(metric, name).__abstractmethods__}
    assert {type(make()).__name__ for make, _, _ in CASES.values()} == concrete


def test_weights_of_positions():
    weight = RNG.random((COUNT, 5))
    right = STEPS.argmax(axis=2) == WORDS
    assert Accuracy().evaluate(STEPS, WORDS, weight) == pytest.approx(
        np.average(right, None, weight)
    )
    logs = STEPS - np.log(np.exp(STEPS).sum(axis=2, keepdims=True))
    nats = -np.take_along_axis(logs, WORDS[..., None], 2)[..., 0]
    wanted = np.exp(np.average(nats, None, weight))
    assert Perplexity().evaluate(STEPS, WORDS, weight) == pytest.approx(wanted)
    weight[:, 2:] = 0
    wanted = F1().evaluate(STEPS[:, :2], WORDS[:, :2], weight[:, :2])
    assert F1().evaluate(STEPS, WORDS, weight) == pytest.approx(wanted)


def of_keras(metrics):
    """Counterparts, with the outputs and targets that they take."""
    many = {"num_thresholds": 2000}
    return {
        "Accuracy": (metrics.SparseCategoricalAccuracy(), LABELS, SCORES),
        "Accuracy, top 2": (metrics.SparseTopKCategoricalAccuracy(2), LABELS, SCORES),
        "Accuracy of steps": (metrics.SparseCategoricalAccuracy(), WORDS, STEPS),
        "BinaryAccuracy": (metrics.BinaryAccuracy(), YES[:, None], CHANCE[:, None]),
        "BinaryAccuracy of labels": (metrics.BinaryAccuracy(), MULTI_HOT, SCORES),
        "F1": (metrics.F1Score("macro"), ONE_HOT, SCORES),
        "IOU": (metrics.MeanIoU(4, dtype="float32", sparse_y_pred=False), LABELS, SCORES),
        "FBeta": (metrics.FBetaScore("weighted", 2.0, 0.3), MULTI_HOT, SCORES),
        "RecallScore": (metrics.Recall(), YES, CHANCE),
        "MeanAbsoluteError": (metrics.MeanAbsoluteError(), TARGET, REAL),
        "RootMeanSquaredError": (metrics.RootMeanSquaredError(), TARGET, REAL),
        "R2": (metrics.R2Score(), TARGET, REAL),
        "AUC": (metrics.AUC(**many), YES, CHANCE),
    }


@pytest.mark.parametrize("name", sorted(of_keras(pytest.importorskip("keras").metrics)))
def test_equals_keras(name):
    theirs, y_true, y_pred = of_keras(pytest.importorskip("keras").metrics)[name]
    make, x, y = CASES[name]
    ours, weight = make(), RNG.random(COUNT).astype(np.float32)
    weight[3] = 0
    for part in (slice(0, 10), slice(10, None)):
        ours.update(x[part], y[part], weight[part])
        theirs.update_state(y_true[part], y_pred[part], sample_weight=weight[part])
    assert ours.result() == pytest.approx(float(theirs.result()), rel=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("error")
def test_float16_is_measured_in_float32(name):
    """The same numbers in both types, up to 60,000 unless they are probabilities."""
    make, x, y = CASES[name]
    if x is REAL:
        x, y = 20000 * x.clip(-3, 3), (20000 * y.clip(-3, 3)).astype(np.float16)
    x = np.asarray(x, np.float16)
    found = []
    for kind in (np.float16, np.float32):
        measure = make()
        for part in (slice(0, 10), slice(10, None)):
            targets = y[part].astype(kind) if y.dtype == np.float16 else y[part]
            measure.update(x[part].astype(kind), targets)
        found.append(measure.compute())
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()
