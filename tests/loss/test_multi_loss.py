"""Several losses at once: the weighted sum and its gradients by output."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from singanet.errors import ArgumentError, CallOrderError, DataError, UnknownNameError
from singanet.layers import Dense, Input, TimeDistributed
from singanet.loss import CTC, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, LabelErrorRate, MeanAbsoluteError
from singanet.net import FeedForwardNet
from singanet.optimizer import SGD

rng = np.random.default_rng(0)
X = {"kind": rng.normal(size=(4, 3)), "size": rng.normal(size=(4, 2))}
Y = {"kind": np.array([0, 1, 2, 0]), "size": rng.normal(size=(4, 2))}


def make():
    return MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()}, {"size": 0.25})


def test_weighted_sum_and_gradients():
    loss, kind, size = make(), SoftmaxCrossEntropy(), SquaredError()
    values = loss.forward(True, X, Y)
    a, b = kind.forward(True, X["kind"], Y["kind"]), size.forward(True, X["size"], Y["size"])
    np.testing.assert_allclose(values, a + 0.25 * b)
    assert loss.evaluate(False, X, Y) == pytest.approx(values.mean())
    loss.forward(True, X, Y)
    dx = loss.backward()
    assert list(dx) == ["kind", "size"]
    np.testing.assert_allclose(dx["kind"], kind.backward())
    np.testing.assert_allclose(dx["size"], 0.25 * size.backward())


def test_gradients_are_slopes_with_sample_weights():
    loss, weight, h = make(), np.array([0.0, 1.0, 2.0, 3.0]), 1e-6
    loss.forward(True, X, Y, sample_weight=weight)
    dx = loss.backward()
    for name, array in X.items():
        direction = rng.normal(size=array.shape)
        up = loss.evaluate(False, {**X, name: array + h * direction}, Y, weight)
        down = loss.evaluate(False, {**X, name: array - h * direction}, Y, weight)
        assert (dx[name] * direction).sum() == pytest.approx((up - down) / (2 * h), abs=1e-8)


@pytest.mark.parametrize("kind", ["squares", "labels", "ignoring", "ctc"])
def test_a_mask_among_the_outputs_says_which_steps_count_in_fit(kind):
    rng = np.random.default_rng(1)
    loss = {"squares": SquaredError(), "labels": SoftmaxCrossEntropy(), "ctc": CTC(),
                 "ignoring": SoftmaxCrossEntropy(ignore_index=2)}[kind]  # fmt: skip
    labels = rng.integers(1, 5, (5, 6))
    y = {"squares": rng.standard_normal((5, 6, 5)), "ctc": labels[:, :1]}.get(kind, labels)
    there = (np.arange(6) < np.array([6, 2, 4, 3, 5])[:, None]).astype(np.float32)
    x = rng.standard_normal((5, 6, 3)).astype(np.float32)
    inputs = Input("x", (6, 3)), Input("there", (6,))
    out = TimeDistributed("out", Dense("fc", 5))(inputs[0])
    both = MultiLoss({"out": loss}, masks={"out": "there"})
    net = FeedForwardNet(inputs=inputs, outputs=[out, inputs[1]], loss=both, seed=0)
    metric = MeanAbsoluteError() if kind == "squares" else Accuracy()
    metric = LabelErrorRate() if kind == "ctc" else metric
    metrics = {"out": [metric]}
    net.compile(SGD(lr=0.0), both, metrics=metrics)
    history = net.fit({"x": x, "there": there}, {"out": y}, batch_size=2, epochs=3, verbose=False)
    assert net.programs.notes == []
    z = net.forward(False, {"x": x, "there": there})["out"]
    if kind == "ctc":
        wanted = np.mean([CTC().evaluate(False, z[k : k + 1, : int(n)], y[k : k + 1])
                          for k, n in enumerate(there.sum(1))])  # fmt: skip
        found = CTC().greedy(z, there)
        rows = np.full((5, 6), -1)
        for row, labels in zip(rows, found, strict=True):
            row[: len(labels)] = labels
        assert history["out_label_error_rate"] == pytest.approx([metric.evaluate(rows, y)] * 3)
    else:
        there = (there > 0) & (y != 2) if kind == "ignoring" else there > 0
        wanted = loss.evaluate(False, z[there], y[there])
        score = history["out_mean_absolute_error" if kind == "squares" else "out_accuracy"]
        assert score == pytest.approx([metric.evaluate(z[there], y[there])] * 3)
    assert history["loss"] == pytest.approx([wanted] * 3)


def test_a_mask_is_of_an_output_with_a_loss_and_is_there():
    with pytest.raises(UnknownNameError, match="masks"):
        MultiLoss({"kind": SquaredError()}, masks={"kin": "steps"})
    with pytest.raises(UnknownNameError, match="outputs of .*steps"):
        MultiLoss({"size": SquaredError()}, masks={"size": "steps"}).forward(True, X, Y)


def test_order_of_calls():
    loss = make()
    loss.forward(True, X, Y)
    loss.forward(False, X, Y)  # does not replace the first
    loss.backward()
    for before in (
        lambda: None,
        lambda: loss.forward(False, X, Y),
        lambda: loss.forward(True, X, {**Y, "kind": np.array([0, 1, 2, 9])}),
        lambda: (loss.forward(True, X, Y), loss.backward()),
    ):
        with suppress(DataError):
            before()
        with pytest.raises(CallOrderError):
            loss.backward()


def test_bad_dicts():
    for error, x, y, text in (
        (UnknownNameError, {"kind": X["kind"]}, Y, "outputs of 'kind', 'size'.*'size'"),
        (UnknownNameError, X, {"size": Y["size"]}, "targets of 'kind', 'size'.*'kind'"),
        (UnknownNameError, X, {**Y, "sise": Y["size"]}, "did you mean 'size'"),
        (ArgumentError, X["kind"], Y, "dict of outputs.*ndarray"),
        (ArgumentError, X, Y["kind"], "dict of targets"),
    ):
        with pytest.raises(error, match=text):
            make().forward(True, x, y)
    out = make().link({**X, "other": X["size"]})
    np.testing.assert_allclose(out["kind"], SoftmaxCrossEntropy().link(X["kind"]))
    assert out["size"] is out["other"] is X["size"]


@pytest.mark.parametrize(
    ("names", "weights", "error", "words"),
    [("ab", None, ArgumentError, "2 names for 1 losses"), ("", None, ArgumentError, "one or more"),
     (["kind"], {"kid": 1.0}, UnknownNameError, "did you mean 'kind'"),
     (["kind"], {"kind": float("nan")}, ArgumentError, "finite number")],
)  # fmt: skip
def test_bad_arguments(names, weights, error, words):
    with pytest.raises(error, match=words):
        MultiLoss(dict.fromkeys(names, SquaredError()), weights)


class CountedLoss(SquaredError):  # noqa: N818
    """A user's loss that counts."""


@pytest.mark.parametrize(
    ("losses", "masks", "reduction", "apart"),
    [
        ([SquaredError(), SoftmaxCrossEntropy()], {}, "mean", False),
        ([SquaredError("sum"), SquaredError("sum")], {}, "sum", False),
        ([SquaredError("sum"), SquaredError()], {}, "mean", True),
        ([SquaredError(), SquaredError()], {"a": "steps"}, "mean", True),
        ([SquaredError(), SoftmaxCrossEntropy(ignore_index=-1)], {}, "mean", True),
        ([SquaredError(), CountedLoss()], {}, "mean", True),
        ([SoftmaxCrossEntropy(ignore_index=-1)], {"a": "steps"}, "mean", False),
    ],
)
def test_whether_all_outputs_are_summed_and_counts_differ(losses, masks, reduction, apart):
    loss = MultiLoss(dict(zip("ab", losses, strict=False)), masks=masks)
    assert (loss.reduction, loss._counts_apart) == (reduction, apart)
