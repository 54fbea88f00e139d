"""Softmax cross-entropy against its formula, SINGA's oracle values and PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss import SoftmaxCrossEntropy, SoftmaxFocal

rng = np.random.default_rng(1)


def formula(x: Any, t: Any) -> Any:
    """The definition, in plain steps, for rows of targets."""
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    return -(t * np.log(p)).sum(-1)


def test_labels_and_one_hot_and_distributions() -> None:
    x = rng.normal(size=(6, 4))
    labels = np.array([0, 1, 2, 3, 1, 1])
    hot = np.eye(4)[labels]
    expected = formula(x, hot)
    loss = SoftmaxCrossEntropy()
    for y in (labels, labels[:, None], labels.astype(np.uint8), hot, hot.astype(int), hot > 0):
        np.testing.assert_allclose(loss.forward(False, x, y), expected, rtol=1e-12)
    soft = rng.random((6, 4))
    np.testing.assert_allclose(
        loss.forward(False, x, 7 * soft), formula(x, soft / soft.sum(1, keepdims=True))
    )


def test_uniform_scores_give_singas_values() -> None:
    x = np.zeros((2, 4), np.float32)
    for y in (np.array([0, 2]), np.eye(4, dtype=int)[[0, 2]]):
        loss = SoftmaxCrossEntropy(reduction="sum")
        np.testing.assert_allclose(loss.forward(True, x, y), -math.log(0.25), rtol=1e-6)
        dx = np.full((2, 4), 0.25)
        dx[[0, 1], [0, 2]] = -0.75
        np.testing.assert_allclose(loss.backward(), dx, atol=1e-7)


def test_singas_single_output_net() -> None:
    x = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    mean = SoftmaxCrossEntropy().evaluate(False, x, np.zeros(3, int))
    assert mean * 3 == pytest.approx(-math.log(1 / (1 + math.e)) - 2 * math.log(0.5), rel=1e-6)


def test_scores_that_would_overflow() -> None:
    x = np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32)
    loss = SoftmaxCrossEntropy()
    np.testing.assert_array_equal(loss.forward(True, x, np.array([0, 0])), [0, 1e4])
    np.testing.assert_array_equal(loss.backward(), [[0, 0], [-0.5, 0.5]])


def test_ignored_positions_cost_nothing() -> None:
    x = rng.normal(size=(3, 4, 5))
    y = rng.integers(0, 5, (3, 4))
    y[0, 1:] = -1
    y[2] = -1
    loss = SoftmaxCrossEntropy(ignore_index=-1)
    values = loss.forward(True, x, y)
    counted = y != -1
    each = formula(x[counted], np.eye(5)[y[counted]])
    assert values.mean() == pytest.approx(each.mean())
    assert values[2] == 0
    dx = loss.backward()
    assert not dx[~counted].any()
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(dx[counted], (p[counted] - np.eye(5)[y[counted]]) / counted.sum())
    total = SoftmaxCrossEntropy(ignore_index=-1, reduction="sum")
    total.forward(True, x, y)
    np.testing.assert_allclose(total.backward(), dx * counted.sum())


@pytest.mark.parametrize("soft", [False, True])
def test_of_steps_that_are_there_those_with_another_label_count(soft: bool) -> None:
    """A distribution is no label, whatever is ignored."""
    x, y = rng.normal(size=(2, 4, 5)), np.array([[1, 2, 0, 3], [2, 2, 1, 2]])
    there = np.array([[1, 1, 1, 0], [1, 0, 0, 1]])
    counted = (there > 0) & (soft | (y != 2))
    targets = rng.dirichlet(np.ones(5), (2, 4)) if soft else np.eye(5)[y]
    loss = SoftmaxCrossEntropy(ignore_index=2)
    values = loss.forward(True, x, targets if soft else y, mask=there)
    assert values.mean() == pytest.approx(formula(x[counted], targets[counted]).mean())
    dx = loss.backward()
    assert not dx[~counted].any()
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(dx[counted], (p - targets)[counted] / counted.sum())


def test_everything_ignored() -> None:
    loss = SoftmaxCrossEntropy(ignore_index=0)
    assert loss.evaluate(True, rng.normal(size=(2, 3)), np.zeros(2, int)) == 0.0
    np.testing.assert_array_equal(loss.backward(), np.zeros((2, 3)))


def test_link_is_softmax() -> None:
    x = rng.normal(size=(2, 3, 4))
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(SoftmaxCrossEntropy().link(x), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
def test_equals_pytorch(smoothing: float, soft: bool) -> None:
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(7, 5))
    y = rng.random((7, 5)) if soft else rng.integers(0, 5, 7)
    y = y / y.sum(1, keepdims=True) if soft else y
    more = {} if soft else {"ignore_index": 2}
    tx = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        tx, torch.tensor(y), label_smoothing=smoothing, **more
    )
    theirs.backward()
    ours = SoftmaxCrossEntropy(label_smoothing=smoothing, **more)
    assert ours.evaluate(True, x, y) == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
def test_class_weights_are_those_of_pytorch(smoothing: float, soft: bool) -> None:
    """Summed: its mean divides by the weights, ours by positions."""
    torch = pytest.importorskip("torch")
    x, weight = rng.normal(size=(7, 5)), np.array([0.5, 0.0, 3.0, 1.0, 2.0])
    y = rng.dirichlet(np.ones(5), 7) if soft else np.array([0, 1, 2, 3, 4, 2, 1])
    more = {} if soft else {"ignore_index": 3}
    tx = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        tx, torch.tensor(y), torch.tensor(weight), reduction="none", label_smoothing=smoothing,
        **more
    )  # fmt: skip
    theirs.sum().backward()
    ours = SoftmaxCrossEntropy(smoothing, reduction="sum", class_weight=weight.tolist(), **more)
    counted = 7 if soft else 6
    found = ours.forward(True, x, y) * counted / 7
    np.testing.assert_allclose(found, theirs.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-14)


def test_ignored_rows_may_hold_anything_whatever_the_weights() -> None:
    x = np.array([[1.0, 2.0], [np.nan, np.inf]])
    for loss in (
        SoftmaxCrossEntropy(ignore_index=-1, class_weight=[1, 2]),
        SoftmaxFocal(ignore_index=-1),
    ):
        assert np.isfinite(loss.forward(True, x, np.array([1, -1]))).all()
        dx = loss.backward()
        assert np.isfinite(dx[0]).all()
        assert not dx[1].any()


@pytest.mark.parametrize("weight", [[1.0], [-1.0, 1.0], [np.nan, 1.0], 2.0, "ab", [[1.0, 2.0]]])
def test_bad_class_weights(weight: Any) -> None:
    for kind in (SoftmaxCrossEntropy, SoftmaxFocal):
        with pytest.raises(ArgumentError, match=rf"{kind.__name__}\(class_weight=\)"):
            kind(class_weight=weight)


def test_class_weights_for_other_classes() -> None:
    with pytest.raises(ShapeError, match=r"expected 2 classes.*\(3, 4\)"):
        SoftmaxCrossEntropy(class_weight=[1, 2]).forward(True, np.zeros((3, 4)), np.zeros(3, int))


def test_focal_equals_keras() -> None:
    keras = pytest.importorskip("keras")
    x, y, alpha = rng.normal(size=(7, 4)), rng.integers(0, 4, 7), [0.2, 1.0, 0.5, 2.0]
    theirs = keras.losses.CategoricalFocalCrossentropy(
        alpha=np.array(alpha), gamma=1.5, from_logits=True, reduction=None, dtype="float64"
    )(np.eye(4)[y], x)
    found = SoftmaxFocal(1.5, class_weight=alpha).forward(False, x, y)
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(theirs), rtol=1e-6)
    np.testing.assert_allclose(
        SoftmaxFocal(0).forward(False, x, y), SoftmaxCrossEntropy().forward(False, x, y)
    )


def test_focal_at_the_ends() -> None:
    x = np.array([[1e4, 0.0], [-1e4, 0.0], [-math.inf, 0.0]], np.float32)
    loss = SoftmaxFocal()
    np.testing.assert_array_equal(loss.forward(True, x, np.array([0, 0, 1])), [0, 1e4, 0])
    assert np.isfinite(loss.backward()).all()
    for gamma in (-1, "2", math.inf, True):
        with pytest.raises(ArgumentError, match=r"SoftmaxFocal\(gamma=\)"):
            SoftmaxFocal(gamma)  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [4, -1, 2**40])
def test_a_label_out_of_range_is_named(label: int) -> None:
    y = np.array([0, 3, 1])
    y[1] = label
    with pytest.raises(DataError, match=f"labels from 0 to 3; received label {label} at index 1;"):
        SoftmaxCrossEntropy().forward(True, np.zeros((3, 4)), y)
    with pytest.raises(DataError, match=rf"label {label} at index \(1, 0\)"):
        SoftmaxCrossEntropy().forward(True, np.zeros((3, 1, 4)), y[:, None])


def test_another_label_than_the_ignored_one_is_still_checked() -> None:
    with pytest.raises(DataError, match="label -2 at index 1"):
        SoftmaxCrossEntropy(ignore_index=-1).forward(True, np.zeros((2, 4)), np.array([-1, -2]))


def test_float_labels() -> None:
    with pytest.raises(DataError, match="integer labels; received labels of type float64"):
        SoftmaxCrossEntropy().forward(True, np.zeros((3, 4)), np.zeros(3))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (3, 1, 1), (1, 3), ()])
def test_labels_of_another_shape_or_rank(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\) for outputs of shape \(3, 4\)"):
        SoftmaxCrossEntropy().forward(True, np.zeros((3, 4)), np.zeros(shape, int))


def test_rows_without_a_class_and_negative_rows() -> None:
    for row in ([0.0, 0.0], [2.0, -1.0], [-1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0]):
        with pytest.raises(DataError, match="positive, finite sum.*index 1"):
            SoftmaxCrossEntropy().forward(True, np.zeros((2, 2)), np.array([[1.0, 0.0], row]))


@pytest.mark.parametrize("shape", [(3,), (3, 0)])
def test_outputs_without_classes(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"\(batch, ..., classes\)"):
        SoftmaxCrossEntropy().forward(True, np.zeros(shape), np.zeros(3, int))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_bad_smoothing(smoothing: float) -> None:
    with pytest.raises(ArgumentError, match=r"label_smoothing"):
        SoftmaxCrossEntropy(label_smoothing=smoothing)


def test_a_score_that_is_no_number_shows_in_its_sample_alone() -> None:
    x = np.zeros((3, 4), np.float32)
    x[1, 2] = np.nan
    x[2, 0] = -np.inf
    loss = SoftmaxCrossEntropy(reduction="sum")
    losses = loss.forward(True, x, np.array([0, 1, 1]))
    np.testing.assert_allclose(losses, [math.log(4), np.nan, math.log(3)], rtol=1e-6)
    dx = loss.backward()
    assert np.isnan(dx[1]).all()
    np.testing.assert_allclose(dx[2], [0, 1 / 3 - 1, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("wrong", [True, 1.0, "no"])
def test_a_label_that_is_ignored_is_an_int(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\(ignore_index=\).*-100"):
        SoftmaxCrossEntropy(ignore_index=wrong)
