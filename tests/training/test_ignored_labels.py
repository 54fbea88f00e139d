"""Metrics leave out the labels that the loss ignores, in every call that measures."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from singanet import Executor, FeedForwardNet, Input
from singanet.layers import Conv2D, Dense, Permute, Softmax
from singanet.loss import CategoricalCrossEntropy, MultiLoss, SoftmaxCrossEntropy, SoftmaxFocal
from singanet.metric import (
    AUC,
    F1,
    IOU,
    Accuracy,
    ConfusionMatrix,
    FBeta,
    Perplexity,
    PrecisionScore,
    RecallScore,
)
from singanet.optimizer import SGD
from singanet.parallel import AllReduce
from singanet.report import ConfusionLog
from singanet.report.recording import write_confusion
from singanet.testing import communicators
from tests.training.test_weighted_metrics import Share

sk = pytest.importorskip("sklearn.metrics", reason="compares: pip install '.[peers]'")

CLASSES = 4
LOSSES = [SoftmaxCrossEntropy, CategoricalCrossEntropy, SoftmaxFocal]


def _probabilities(scores):
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def _auc(p, labels):
    return np.mean([sk.roc_auc_score(labels == k, p[:, k]) for k in np.unique(labels)])


def _of_classes(function, **named):
    return lambda p, labels: function(labels, p.argmax(1), zero_division=0, **named)


METRICS = {
    "accuracy": (Accuracy, lambda p, labels: sk.accuracy_score(labels, p.argmax(1))),
    "top": (
        lambda: Accuracy(2),
        lambda p, labels: sk.top_k_accuracy_score(labels, p, k=2, labels=range(CLASSES)),
    ),
    "f1": (F1, _of_classes(sk.f1_score, average="macro")),
    "fbeta": (
        lambda: FBeta(2.0, "weighted"),
        _of_classes(sk.fbeta_score, beta=2, average="weighted"),
    ),
    "precision": (PrecisionScore, _of_classes(sk.precision_score, average="macro")),
    "recall": (lambda: RecallScore("micro"), _of_classes(sk.recall_score, average="micro")),
    "iou": (IOU, _of_classes(sk.jaccard_score, average="macro")),
    "perplexity": (
        Perplexity,
        lambda p, labels: np.exp(-np.log(p[np.arange(len(p)), labels]).mean()),
    ),
    "auc": (lambda: AUC(average="macro"), _auc),
    "share": (Share, lambda p, labels: float((labels == 0).mean())),
}
MADE = {name: make for name, (make, _) in METRICS.items()}


def expected(p, y, ignored=-1, loss=SoftmaxCrossEntropy):
    """sklearn's results for the positions that count, of probabilities ``p`` (..., C)."""
    p, y = p.reshape(-1, CLASSES).astype(np.float64), y.reshape(-1)
    p, y = p[y != ignored], y[y != ignored]
    found = {name: judge(p, y) for name, (_, judge) in METRICS.items()}
    if loss is CategoricalCrossEntropy:
        # Perplexity takes the softmax of its inputs, here of probabilities.
        found["perplexity"] = METRICS["perplexity"][1](_probabilities(p), y)
    return found


def _net(kind, loss, ignored=-1):
    ends = [Softmax("softmax", axis=-1)] if loss is CategoricalCrossEntropy else []
    if kind == "steps":
        body = [Dense("fc", CLASSES, input_sample_shape=(5, 3))]
    elif kind == "samples":
        body = [Dense("fc", CLASSES, input_sample_shape=(3,))]
    else:
        conv = Conv2D("conv", CLASSES, 3, input_sample_shape=(2, 4, 5))
        body = [conv, Permute("last", (2, 3, 1))]
    return FeedForwardNet([*body, *ends], loss=loss(ignore_index=ignored), seed=1)


SHAPES = {"samples": ((3,), ()), "steps": ((5, 3), (5,)), "pixels": ((2, 4, 5), (4, 5))}


def _data(kind, samples=24, ignored=-1, seed=0, column=False):
    rng = np.random.default_rng(seed)
    inner, outer = SHAPES[kind]
    x = rng.standard_normal((samples, *inner)).astype(np.float32)
    y = rng.integers(0, CLASSES, (samples, *outer))
    y[rng.random(y.shape) < 0.4] = ignored
    y[3:6] = ignored  # a batch of which nothing counts
    return x, y[..., None] if column else y


def _same(found, wanted, names=METRICS, **tolerance):
    for name in names:
        assert found[name] == pytest.approx(wanted[name], **{"abs": 1e-5, **tolerance}), name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("ignored", [-1, 2])
def test_evaluate_and_fit_count_what_the_loss_counts(kind, loss, ignored):
    """In one go and by batches, one of them of ignored labels alone; validation; one batch."""
    x, y = _data(kind, ignored=ignored, column=kind == "steps")
    net = _net(kind, loss, ignored)
    net.compile(SGD(0.0), net.loss, {name: make() for name, make in MADE.items()})
    wanted = expected(net.predict(x), y, ignored, loss)
    _same(net.evaluate(x, y).logs, wanted)
    _same(net.evaluate(x, y, batch_size=3).logs, wanted)
    _same(net.test_on_batch(x, y), wanted)
    _same(net.train_on_batch(x, y), wanted)
    for recorded in (False, True):
        net.programs.enabled = recorded
        history = net.fit(
            x, y, batch_size=3, epochs=2, validation_data=(x, y), shuffle=False, verbose=False
        )
        for at in range(2):
            _same({name: history[name][at] for name in METRICS}, wanted)
            _same({name: history[f"val_{name}"][at] for name in METRICS}, wanted)


@pytest.mark.parametrize("name", METRICS)
def test_the_metric_of_a_net(name):
    """`step`, `train` and `evaluate`, recorded or not."""
    x, y = _data("steps")
    net = _net("steps", SoftmaxCrossEntropy)
    net.metric = MADE[name]()
    wanted = expected(net.predict(x), y)[name]
    found = [net.step(x, y, SGD(0.0))[1] for _ in range(3)]
    found += [net.train(x, y)[1][1], net.evaluate(x, y)[1], net.evaluate(x, y, batch_size=3)[1]]
    assert found == pytest.approx([wanted] * 6, abs=1e-5)


def test_matrices_of_several_outputs_with_a_mask_and_weights():
    """Weighted ones too; neither masked nor ignored positions count."""
    x, y = _data("steps")
    there = np.random.default_rng(4).random((24, 5)) < 0.7
    weight = np.random.default_rng(5).random((24, 5)).astype(np.float32)
    inp, mask = Input("x", (5, 3)), Input("mask", (5,))
    out = Dense("fc", CLASSES)(inp)
    net = FeedForwardNet(inputs=[inp, mask], outputs=[out, mask], seed=0)
    net.compile(
        SGD(0.0),
        MultiLoss({"fc": SoftmaxCrossEntropy(ignore_index=-1)}, masks={"fc": "mask"}),
        {"fc": [Accuracy(), ConfusionMatrix()]},
        weighted_metrics={"fc": {"weighed": Accuracy()}},
    )
    fed, counts = {"x": x, "mask": there.astype(np.float32)}, there & (y >= 0)
    taken = net.predict(fed)["fc"].argmax(-1)
    for size in (None, 3):
        logs = net.evaluate(fed, {"fc": y}, size, sample_weight=weight).logs
        matrix = sk.confusion_matrix(y[counts], taken[counts], labels=range(CLASSES))
        assert np.array_equal(logs["fc_confusion_matrix"], matrix)
        assert logs["fc_accuracy"] == pytest.approx(sk.accuracy_score(y[counts], taken[counts]))
        weighed = sk.accuracy_score(y[counts], taken[counts], sample_weight=weight[counts])
        assert logs["fc_weighed"] == pytest.approx(weighed, rel=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_in_a_program_of_an_executor(name):
    x, y = _data("steps")
    inp, labels = Input("x", (5, 3)), Input("labels", (5,), dtype="int64")
    scores = Dense("fc", CLASSES)(inp)
    loss = SoftmaxCrossEntropy(ignore_index=-1)(scores, labels)
    executor = Executor({"train": [scores, loss, MADE[name]()(scores, labels)]}, seed=0)
    for _ in range(3):
        made, _, found = executor.run("train", {"x": x, "labels": y})
        assert found == pytest.approx(expected(_probabilities_of(made), y)[name], abs=1e-5)


def _probabilities_of(scores):
    return _probabilities(scores.reshape(-1, CLASSES))


def test_a_head_in_blocks(monkeypatch):
    """Metrics that need no array of all scores, by steps, recorded ones, and evaluation."""
    monkeypatch.setattr("singanet.loss.head_loss.BLOCK", 1)
    monkeypatch.setattr("singanet.loss.head_loss.FEWEST_ROWS", 4)
    x, y = _data("steps")
    names = ["accuracy", "top", "perplexity"]
    net = _net("steps", SoftmaxCrossEntropy)
    net.compile(SGD(0.0), net.loss, {name: MADE[name]() for name in names})
    wanted = expected(_probabilities_of(net.forward(False, x)), y)
    assert isinstance(net.layers[0], Dense)
    _same(net.evaluate(x, y).logs, wanted, names)
    _same(net.evaluate(x, y, batch_size=3).logs, wanted, names)
    for _ in range(3):
        _same(net.train_on_batch(x, y), wanted, names)
    net.metric = MADE["top"]()
    found = [net.step(x, y, SGD(0.0))[1] for _ in range(3)]
    assert found == pytest.approx([wanted["top"]] * 3)


def test_the_file_of_a_confusion_log(tmp_path):
    x, y = _data("steps")
    net = _net("steps", SoftmaxCrossEntropy)
    net.compile(SGD(0.0))
    log = ConfusionLog(tmp_path / "confusion.csv")
    net.fit(x, y, batch_size=3, validation_data=(x, y), callbacks=[log], verbose=False)
    counts, taken = y >= 0, net.predict(x).argmax(-1)
    matrix = sk.confusion_matrix(y[counts], taken[counts])
    write_confusion(tmp_path / "wanted.csv", matrix)
    assert (tmp_path / "confusion.csv").read_text() == (tmp_path / "wanted.csv").read_text()
    assert str(matrix[0, 1]) in (tmp_path / "wanted.csv").read_text()


def test_ranks_merge_what_their_losses_count():
    """One rank has a batch of ignored labels alone."""
    x, y = _data("steps", samples=23)
    names = [name for name in METRICS if name != "share"]
    whole = _net("steps", SoftmaxCrossEntropy)
    wanted = expected(whole.predict(x), y)

    def measure(comm):
        net = _net("steps", SoftmaxCrossEntropy)
        rule = AllReduce(SGD(0.0), comm)
        net.compile(rule, net.loss, {name: MADE[name]() for name in names})
        logs = net.evaluate(x, y, batch_size=3).logs
        history = net.fit(x, y, batch_size=3, shuffle=False, verbose=False)
        return logs, {name: history[name][0] for name in names}

    with communicators(2) as comms, ThreadPoolExecutor(2) as pool:
        for found in pool.map(measure, comms):
            for logs in found:
                _same(logs, wanted, names)
