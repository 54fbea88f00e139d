"""What every loss must do, whatever its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from singanet import loss as losses
from singanet.base.arguments import kEval, kTrain
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError

rng = np.random.default_rng(3)
SCORES = rng.normal(size=(5, 4)) * 3
SEQUENCE = rng.normal(size=(4, 3, 6))
LABELS = np.array([0, 3, 1, 2, 3])
PROBABILITIES = rng.uniform(0.05, 0.95, (5, 4))
DISTRIBUTIONS = rng.dirichlet([1.0] * 6, (4, 3))
ROWS = rng.dirichlet([1.0] * 4, 5)
MULTI_HOT = rng.integers(0, 2, (5, 4))


@dataclass
class Case:
    """A loss, outputs and targets, and over how many positions its mean goes."""

    make: Callable[..., Any]
    x: Any
    y: Any
    positions: Callable[[Any], int]

    @property
    def data(self) -> tuple[Any, Any]:
        return self.x, self.y


def rows(x: Any) -> int:
    return int(np.prod(x.shape[:-1]))


def elements(x: Any) -> int:
    return int(x.size)


CASES = {
    "softmax, labels": Case(losses.SoftmaxCrossEntropy, SCORES, LABELS, rows),
    "softmax, column of labels": Case(losses.SoftmaxCrossEntropy, SCORES, LABELS[:, None], rows),
    "softmax, sequences": Case(
        losses.SoftmaxCrossEntropy, SEQUENCE, rng.integers(0, 6, (4, 3)), rows
    ),
    "softmax, counts": Case(
        losses.SoftmaxCrossEntropy, SCORES, rng.integers(1, 5, SCORES.shape), rows
    ),
    "softmax, distributions": Case(
        losses.SoftmaxCrossEntropy, SEQUENCE, rng.random(SEQUENCE.shape), rows
    ),
    "softmax, smoothed labels": Case(
        lambda **more: losses.SoftmaxCrossEntropy(label_smoothing=0.3, **more),
        SCORES,
        LABELS,
        rows,
    ),
    "softmax, smoothed distributions": Case(
        lambda **more: losses.SoftmaxCrossEntropy(label_smoothing=0.3, **more),
        SCORES,
        rng.random(SCORES.shape),
        rows,
    ),
    "categorical, labels": Case(losses.CategoricalCrossEntropy, ROWS, LABELS, rows),
    "categorical, smoothed distributions": Case(
        lambda **more: losses.CategoricalCrossEntropy(label_smoothing=0.3, **more),
        0.8 * DISTRIBUTIONS + 0.2 / 6,
        rng.random(DISTRIBUTIONS.shape),
        rows,
    ),
    "categorical, sequences": Case(
        losses.CategoricalCrossEntropy,
        0.8 * DISTRIBUTIONS + 0.2 / 6,
        rng.integers(0, 6, (4, 3)),
        rows,
    ),
    "mean squared error": Case(
        losses.MeanSquaredError, SEQUENCE, rng.normal(size=SEQUENCE.shape), elements
    ),
    "squared error": Case(losses.SquaredError, SEQUENCE, rng.normal(size=SEQUENCE.shape), elements),
    "squared error, vector": Case(
        losses.SquaredError, SCORES[:, 0].copy(), rng.normal(size=5), elements
    ),
    "sigmoid": Case(losses.SigmoidCrossEntropy, SCORES, MULTI_HOT, elements),
    "sigmoid, probabilities": Case(
        losses.SigmoidCrossEntropy, SEQUENCE, rng.random(SEQUENCE.shape), elements
    ),
    "sigmoid, weights": Case(
        lambda **more: losses.SigmoidCrossEntropy(2.5, [0.5, 1.0, 2.0, 0.0], **more),
        SCORES,
        MULTI_HOT,
        elements,
    ),
    "absolute error": Case(
        losses.MeanAbsoluteError, SEQUENCE, rng.normal(size=SEQUENCE.shape), elements
    ),
    "huber": Case(
        lambda **more: losses.Huber(0.7, **more), SCORES, rng.normal(size=(5, 4)), elements
    ),
    "kl": Case(losses.KLDivergence, SEQUENCE, DISTRIBUTIONS, rows),
    "hinge": Case(losses.Hinge, SCORES, 2 * MULTI_HOT - 1, elements),
    "hinge, squared": Case(
        lambda **more: losses.Hinge(2.0, squared=True, **more), SCORES, MULTI_HOT, elements
    ),
    "binary": Case(losses.BinaryCrossEntropy, PROBABILITIES, MULTI_HOT, elements),
    "binary, weights": Case(
        lambda **more: losses.BinaryCrossEntropy(2.5, [0.5, 1.0, 2.0, 0.0], **more),
        PROBABILITIES,
        rng.random((5, 4)),
        elements,
    ),
    "sigmoid, smoothed": Case(
        lambda **more: losses.SigmoidCrossEntropy(label_smoothing=0.2, **more),
        SCORES,
        MULTI_HOT,
        elements,
    ),
    "softmax, weights of classes": Case(
        lambda **more: losses.SoftmaxCrossEntropy(0.1, class_weight=[0.5, 1, 2, 0], **more),
        SCORES,
        LABELS,
        rows,
    ),
    "softmax, weights and distributions": Case(
        lambda **more: losses.SoftmaxCrossEntropy(class_weight=range(1, 7), **more),
        SEQUENCE,
        DISTRIBUTIONS,
        rows,
    ),
    "categorical, weights": Case(
        lambda **more: losses.CategoricalCrossEntropy(class_weight=[0.5, 1, 2, 0], **more),
        ROWS,
        LABELS,
        rows,
    ),
    "softmax focal": Case(losses.SoftmaxFocal, SCORES, LABELS, rows),
    "softmax focal, distributions": Case(
        lambda **more: losses.SoftmaxFocal(0.5, class_weight=range(1, 7), **more),
        SEQUENCE,
        DISTRIBUTIONS,
        rows,
    ),
    "sigmoid focal": Case(
        lambda **more: losses.SigmoidFocal(2.0, 0.25, **more), SCORES, MULTI_HOT, elements
    ),
    "sigmoid focal, shares": Case(
        lambda **more: losses.SigmoidFocal(0.5, **more), SCORES, PROBABILITIES, elements
    ),
    "smooth l1": Case(
        lambda **more: losses.SmoothL1(0.3, **more), SCORES, rng.normal(size=(5, 4)), elements
    ),
    "poisson": Case(losses.Poisson, SCORES / 3, rng.integers(0, 5, (5, 4)), elements),
    "gaussian": Case(losses.GaussianNLL, SEQUENCE, rng.normal(size=(4, 3, 3)), rows),
    "cosine": Case(losses.CosineSimilarity, SEQUENCE, rng.normal(size=SEQUENCE.shape), rows),
    "dice": Case(losses.Dice, SCORES, MULTI_HOT, len),
    "dice of images": Case(
        lambda **more: losses.Dice(0.1, **more),
        rng.normal(size=(3, 2, 3, 2)),
        rng.random((3, 2, 3, 2)),
        lambda x: x.shape[0] * x.shape[1],
    ),
    "triplet": Case(
        losses.TripletMargin, rng.normal(size=(5, 3, 4)), np.array([1, -1, 1, 0, 1]), len
    ),
}


@pytest.fixture(params=CASES)
def case(request: Any) -> Case:
    return CASES[request.param]


def slope(loss: Any, x: Any, y: Any, **more: Any) -> Any:
    """Central differences of the mean of the losses, element by element."""
    h = 1e-6
    dx = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * h
            dx[index] += sign * loss.forward(kEval, moved, y, **more).mean() / (2 * h)
    return dx


def test_backward_is_the_slope_of_the_mean(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    loss.forward(kTrain, x, y)
    np.testing.assert_allclose(loss.backward(), slope(loss, x, y), atol=1e-8)


def test_backward_with_sample_weights(case: Case) -> None:
    x, y = case.data
    weight = np.linspace(0, 2, len(x))
    loss = case.make()
    values = loss.forward(kTrain, x, y, sample_weight=weight)
    np.testing.assert_allclose(values, weight * loss.forward(kEval, x, y))
    dx = loss.backward()
    np.testing.assert_allclose(dx, slope(loss, x, y, sample_weight=weight), atol=1e-8)
    assert not dx[0].any()


def test_sum_is_the_gradient_over_all_positions(case: Case) -> None:
    x, y = case.data
    mean, total = case.make(), case.make(reduction="sum")
    np.testing.assert_array_equal(mean.forward(True, x, y), total.forward(True, x, y))
    np.testing.assert_allclose(total.backward(), mean.backward() * case.positions(x))


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.x.shape[:2] == (4, 3)]
)
def test_masked_steps_do_not_count(name: str) -> None:
    case = CASES[name]
    (x, y), there = case.data, np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    loss, alone, weight = case.make(), case.make(), np.array([1.0, 2.0, 3.0, 0.5])
    for of_samples, of_steps in (({}, {}), ([weight], [np.repeat(weight, 3)[there.ravel() > 0]])):
        values = loss.forward(True, x, y, *of_samples, mask=there)
        wanted = alone.forward(True, x[there > 0], y[there > 0], *of_steps)
        assert values.mean() == pytest.approx(wanted.mean())
        dx = loss.backward()
        np.testing.assert_allclose(dx[there > 0], alone.backward())
        assert not dx[there == 0].any()
    assert not loss.forward(True, x, y, mask=0 * there).any()
    with pytest.raises(ShapeError, match="mask: expected one number a step, shape \\(4, 3\\)"):
        loss.forward(True, x, y, mask=there[:, :2])


def test_one_value_a_sample_and_evaluate_is_their_mean(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    values = loss.forward(False, x, y)
    assert values.shape == (len(x),)
    assert type(loss.evaluate(False, x, y)) is float
    np.testing.assert_allclose(loss.evaluate(kEval, x, y), np.mean(values))
    for i in range(len(x)):
        one = loss.evaluate(False, x[i : i + 1], y[i : i + 1])
        np.testing.assert_allclose(one, values[i])


@pytest.mark.few(12)
def test_float32_stays(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    values = loss.forward(True, x.astype(np.float32), y)
    assert values.dtype == np.float32
    assert loss.backward().dtype == np.float32
    np.testing.assert_allclose(values, loss.forward(False, x, y), rtol=2e-5, atol=1e-6)
    loss.forward(True, x.astype(np.float32), y, sample_weight=np.ones(len(x)))
    assert loss.backward().dtype == np.float32


@pytest.mark.few(12)
def test_strided_outputs_and_targets(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    expected = loss.forward(True, x, y)
    dx = loss.backward()
    wide_x, wide_y = np.repeat(x, 2, axis=-1), np.repeat(y, 2, axis=0)
    np.testing.assert_array_equal(loss.forward(True, wide_x[..., ::2], wide_y[::2]), expected)
    np.testing.assert_array_equal(loss.backward(), dx)


@pytest.mark.few(12)
def test_inputs_are_left_alone(case: Case) -> None:
    x, y = case.data
    x_before, y_before = x.copy(), y.copy()
    loss = case.make()
    loss.forward(True, x, y, sample_weight=np.full(len(x), 3.0))
    loss.backward()
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(y, y_before)


@pytest.mark.few(12)
def test_empty_batch(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    assert loss.forward(True, x[:0], y[:0]).shape == (0,)
    assert loss.backward().shape == x[:0].shape
    assert loss.evaluate(False, x[:0], y[:0]) == 0.0


@pytest.mark.few(12)
def test_the_second_training_forward_replaces_the_first(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    loss.forward(True, x, y)
    loss.forward(True, x[1:], y[1:])
    loss.forward(False, x, y)
    assert loss.backward().shape == x[1:].shape


@pytest.mark.few(12)
def test_backward_without_training_forward(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    with pytest.raises(CallOrderError, match="expected a training forward"):
        loss.backward()
    loss.forward(kEval, x, y)
    with pytest.raises(CallOrderError):
        loss.backward()
    loss.forward(kTrain, x, y)
    loss.backward()
    with pytest.raises(CallOrderError):
        loss.backward()


@pytest.mark.few(12)
def test_a_bad_flag(case: Case) -> None:
    x, y = case.data
    with pytest.raises(ArgumentError, match="kTrain"):
        case.make().forward(2, x, y)


@pytest.mark.few(12)
def test_a_bad_reduction(case: Case) -> None:
    with pytest.raises(ArgumentError, match="'mean', 'sum'"):
        case.make(reduction="max")


@pytest.mark.few(12)
def test_targets_of_another_length(case: Case) -> None:
    x, y = case.data
    loss = case.make()
    with pytest.raises(ShapeError, match=type(loss).__name__):
        loss.forward(True, x, y[:-1])


@pytest.mark.few(12)
def test_outputs_that_are_no_floats(case: Case) -> None:
    x, y = case.data
    with pytest.raises(DataError, match="floats"):
        case.make().forward(True, x.astype(int), y)
    with pytest.raises(DataError, match="batch axis"):
        case.make().forward(True, np.array(1.0), y)


def test_weights_of_positions(case: Case) -> None:
    """As the same positions in samples of their own, each with its weight."""
    x, y = case.data
    loss = case.make()
    per_sample = case.positions(x) // len(x)
    if per_sample == 1:
        return
    ranks = (k for k in range(2, x.ndim + 1) if np.prod(x.shape[1:k]) >= per_sample)
    shape = x.shape[: next(ranks)]
    weight = rng.uniform(0, 2, shape)
    values = loss.forward(True, x, y, sample_weight=weight)
    dx = loss.backward()
    np.testing.assert_allclose(dx, slope(loss, x, y, sample_weight=weight), atol=1e-8)
    even = loss.forward(False, x, y, sample_weight=np.full(shape, 2.0))
    np.testing.assert_allclose(even, 2 * loss.forward(False, x, y))
    assert not np.allclose(values, even)
    with pytest.raises(ShapeError, match=r"one weight a sample, shape \(\d,\), or one a position"):
        loss.forward(True, x, y, sample_weight=np.ones((*shape, 2)))


@pytest.mark.few(12)
def test_bad_sample_weights(case: Case) -> None:
    x, y = case.data
    with pytest.raises(ShapeError, match="one weight a sample"):
        case.make().forward(True, x, y, sample_weight=np.ones(len(x) + 1))
    with pytest.raises(DataError, match="numbers"):
        case.make().forward(True, x, y, sample_weight=np.array(["a"] * len(x)))
