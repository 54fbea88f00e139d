"""Every metric: what holds for any, its formula, and Keras beside it."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import metric as metrics
from singanet.loss import DPO, KTO
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
    Reward,
    RootMeanSquaredError,
)
from tests.kit.metrics import MetricCase

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
FAR = 1e3 + REAL.astype(float)


def top(k):
    return lambda x, y: np.mean(
        [label in np.argsort(-row)[:k] for row, label in zip(x, y.ravel(), strict=True)]
    )


def first(k, of):
    """Of the first ``k`` classes the right ones, over ``k`` or over those that are right."""

    def formula(x, y):
        right = np.take_along_axis(y, np.argsort(-x, axis=1)[:, :k], 1).sum(1)
        return (right / (k if of == "taken" else np.maximum(y.sum(1), 1))).mean()

    return formula


def nats(x, y):
    return -np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True))[(*np.indices(y.shape), y)]


def r2(x, y):
    return np.mean(1 - ((x - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0))


def confusion(x, y):
    return [[np.sum((y == a) & (x.argmax(1) == b)) for b in range(4)] for a in range(4)]


REWARDS = {
    "chosen": lambda d: d[:, 0].mean(),
    "rejected": lambda d: d[:, 1].mean(),
    "margin": lambda d: (d[:, 0] - d[:, 1]).mean(),
    "accuracy": lambda d: (d[:, 0] > d[:, 1]).mean(),
}
CASES = {
    **{f"Reward, {of}": MetricCase(lambda of=of: Reward(DPO(0.5), of), REAL[:, :2], TARGET[:, :2],
                                   lambda x, y, of=of: 0.5 * REWARDS[of](x - y))
       for of in ("chosen", "rejected", "margin")},
    "Reward, accuracy": MetricCase(lambda: Reward(DPO(0.5), "accuracy"), REAL[:, :2], TARGET[:, :2],
                                   lambda x, y: REWARDS["accuracy"](x - y)),
    "Reward of judged answers": MetricCase(
        lambda: Reward(KTO(0.5)), REAL[:, :2], np.column_stack([TARGET[:, :2], YES]),
        lambda x, y: 0.5 * np.subtract(*[(x - y[:, :2])[y[:, 2] == k, 0].mean() for k in (1, 0)])),
    "Accuracy": MetricCase(Accuracy, SCORES, LABELS, top(1)),
    "Accuracy, top 2": MetricCase(lambda: Accuracy(2), SCORES, LABELS, top(2)),
    "Accuracy, column": MetricCase(lambda: Accuracy(top_k=3), SCORES, LABELS[:, None], top(3)),
    "Accuracy, rows": MetricCase(Accuracy, SCORES, ONE_HOT,
                                 lambda x, y: (x.argmax(1) == y.argmax(1)).mean()),
    "Accuracy of steps": MetricCase(Accuracy, STEPS, WORDS,
                                    lambda x, y: (x.argmax(-1) == y).mean()),
    "BinaryAccuracy": MetricCase(BinaryAccuracy, CHANCE, YES,
                                 lambda x, y: ((x > 0.5) == y).mean()),
    "BinaryAccuracy of labels": MetricCase(BinaryAccuracy, SCORES, MULTI_HOT,
                                           lambda x, y: ((x > 0.5) == y).mean()),
    "BinaryAccuracy, all labels": MetricCase(lambda: BinaryAccuracy(0.3, True), SCORES, MULTI_HOT,
                                             lambda x, y: ((x > 0.3) == y).all(1).mean()),
    "Precision": MetricCase(lambda: Precision(2), SCORES, MULTI_HOT, first(2, "taken")),
    "Recall": MetricCase(lambda: Recall(2), SCORES, MULTI_HOT, first(2, "there")),
    "F1": MetricCase(F1, SCORES, LABELS),
    "F1, micro": MetricCase(lambda: F1("micro", threshold=0.2), SCORES, MULTI_HOT),
    "F1, weighted": MetricCase(lambda: F1("weighted"), SCORES, LABELS),
    "FBeta": MetricCase(lambda: FBeta(2.0, "weighted", 0.3), SCORES, MULTI_HOT),
    "PrecisionScore": MetricCase(lambda: PrecisionScore("weighted"), SCORES, LABELS),
    "RecallScore": MetricCase(lambda: RecallScore("micro", 0.5), CHANCE, YES),
    "RecallScore of steps": MetricCase(RecallScore, STEPS, WORDS),
    "ConfusionMatrix": MetricCase(ConfusionMatrix, SCORES, LABELS, confusion),
    "MeanAbsoluteError": MetricCase(MeanAbsoluteError, REAL, TARGET,
                                    lambda x, y: np.abs(x - y).mean()),
    "RootMeanSquaredError": MetricCase(RootMeanSquaredError, REAL, TARGET,
                                       lambda x, y: np.sqrt(((x - y) ** 2).mean())),
    "R2": MetricCase(R2, REAL, TARGET, r2),
    "R2 far from 0": MetricCase(R2, FAR, FAR[::-1] + 0.5, r2),
    "Perplexity": MetricCase(Perplexity, SCORES, LABELS, lambda x, y: np.exp(nats(x, y).mean())),
    "Perplexity, padded": MetricCase(lambda: Perplexity(1), STEPS.astype(float), WORDS,
                                     lambda x, y: np.exp(nats(x, y)[y != 1].mean())),
    "IOU": MetricCase(IOU, SCORES, LABELS),
    "LabelErrorRate": MetricCase(LabelErrorRate, STEPS, WORDS[:, :3]),
    "AUC": MetricCase(AUC, CHANCE, YES),
    "AUC of two": MetricCase(AUC, np.stack([1 - CHANCE, CHANCE], axis=1), YES),
    "AUC, pr": MetricCase(lambda: AUC("pr"), CHANCE, YES),
    "AUC, macro": MetricCase(lambda: AUC(average="macro"), SCORES, LABELS),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_metric(case):
    case.test_metric()


def test_every_metric_is_here():
    """Those that are not are of several kinds, or of no own."""
    concrete = {name for name in metrics.__all__ if not getattr(metrics, name).__abstractmethods__}
    assert {type(case.make()).__name__ for case in CASES.values()} == concrete


def test_a_subclass_that_gathers_more_does_not_merge_before_it_says_how():
    class More(Accuracy):
        def reset(self):
            super().reset()
            self.worst = 1.0

    class Told(More):
        gathered = (*Accuracy.gathered, "worst")

        def merge(self, state):
            self.worst = min(self.worst, state["worst"])

    assert not More._can_merge()
    assert Told._can_merge()


def test_numbers_as_large_as_float16_has_are_measured_in_float32():
    x, y = ((20000 * part.clip(-3, 3)).astype(np.float16) for part in (REAL, TARGET))
    for make in (MeanAbsoluteError, RootMeanSquaredError, R2):
        found = [make().evaluate(x.astype(kind), y.astype(kind)) for kind in (x.dtype, np.float32)]
        assert found[0] == found[1]
        assert np.isfinite(found[0])


def test_weights_of_positions():
    weight = RNG.random((COUNT, 5))
    right = STEPS.argmax(axis=2) == WORDS
    found = Accuracy().evaluate(STEPS, WORDS, weight)
    assert found == pytest.approx(np.average(right, None, weight))
    wanted = np.exp(np.average(nats(STEPS, WORDS), None, weight))
    assert Perplexity().evaluate(STEPS, WORDS, weight) == pytest.approx(wanted)
    weight[:, 2:] = 0
    wanted = F1().evaluate(STEPS[:, :2], WORDS[:, :2], weight[:, :2])
    assert F1().evaluate(STEPS, WORDS, weight) == pytest.approx(wanted)


# -- Keras ----------------------------------------------------------------------------------------

KERAS = {
    "Accuracy": (lambda m: m.SparseCategoricalAccuracy(), LABELS, SCORES),
    "Accuracy, top 2": (lambda m: m.SparseTopKCategoricalAccuracy(2), LABELS, SCORES),
    "Accuracy of steps": (lambda m: m.SparseCategoricalAccuracy(), WORDS, STEPS),
    "BinaryAccuracy": (lambda m: m.BinaryAccuracy(), YES[:, None], CHANCE[:, None]),
    "BinaryAccuracy of labels": (lambda m: m.BinaryAccuracy(), MULTI_HOT, SCORES),
    "F1": (lambda m: m.F1Score("macro"), ONE_HOT, SCORES),
    "IOU": (lambda m: m.MeanIoU(4, dtype="float32", sparse_y_pred=False), LABELS, SCORES),
    "FBeta": (lambda m: m.FBetaScore("weighted", 2.0, 0.3), MULTI_HOT, SCORES),
    "RecallScore": (lambda m: m.Recall(), YES, CHANCE),
    "MeanAbsoluteError": (lambda m: m.MeanAbsoluteError(), TARGET, REAL),
    "RootMeanSquaredError": (lambda m: m.RootMeanSquaredError(), TARGET, REAL),
    "R2": (lambda m: m.R2Score(), TARGET, REAL),
    "AUC": (lambda m: m.AUC(num_thresholds=2000), YES, CHANCE),
}


@pytest.mark.parametrize("name", KERAS)
def test_equals_keras(name):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    make, y_true, y_pred = KERAS[name]
    theirs, weight = make(keras.metrics), RNG.random(COUNT).astype(np.float32)
    weight[3] = 0
    parts = slice(0, 10), slice(10, None)
    for part in parts:
        theirs.update_state(y_true[part], y_pred[part], sample_weight=weight[part])
    ours = CASES[name].seen(*parts, weight=weight)
    assert ours.result() == pytest.approx(float(theirs.result()), rel=1e-5)
