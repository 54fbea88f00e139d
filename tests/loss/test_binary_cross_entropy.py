"""Binary cross-entropy of scores and of probabilities, against formulas and PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from singanet import Executor, Input
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import Dense, Softmax, StopGradient
from singanet.loss import (
    BinaryCrossEntropy,
    Hinge,
    KLDivergence,
    SigmoidCrossEntropy,
    SigmoidFocal,
)
from singanet.optimizer import SGD

rng = np.random.default_rng(5)


def test_large_scores_are_exact() -> None:
    x = np.array([1e4, -1e4, 1e4, -1e4], np.float32)
    y = np.array([1, 0, 0, 1])
    loss = SigmoidCrossEntropy(reduction="sum")
    np.testing.assert_array_equal(loss.forward(True, x, y), [0, 0, 1e4, 1e4])
    np.testing.assert_allclose(loss.backward(), [0, 0, 1, -1], atol=1e-37)
    weighted = SigmoidCrossEntropy(pos_weight=2.0)
    np.testing.assert_array_equal(weighted.forward(False, x, y), [0, 0, 1e4, 2e4])


@pytest.mark.parametrize("pos", [None, 3.0, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize("both", [None, [2.0, 0.0, 1.0]])
def test_equals_pytorch(pos: Any, both: Any) -> None:
    torch = pytest.importorskip("torch")
    x, y = rng.normal(size=(4, 3)) * 4, rng.integers(0, 2, (4, 3))
    tx = torch.tensor(x, requires_grad=True)

    def tensor(weight: Any) -> Any:
        return None if weight is None else torch.tensor(weight, dtype=torch.float64)

    theirs = torch.nn.functional.binary_cross_entropy_with_logits(
        tx, torch.tensor(y, dtype=torch.float64), weight=tensor(both), pos_weight=tensor(pos)
    )
    theirs.backward()
    ours = SigmoidCrossEntropy(pos_weight=pos, class_weight=both)
    assert ours.evaluate(True, x, y) == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-14)


def test_smoothing_and_focus_are_those_of_keras() -> None:
    keras = pytest.importorskip("keras")
    x, y = rng.normal(size=(4, 3)) * 4, rng.integers(0, 2, (4, 3))
    pairs = [
        (SigmoidCrossEntropy(label_smoothing=0.2), "BinaryCrossentropy", {"label_smoothing": 0.2}),
        (SigmoidFocal(1.5), "BinaryFocalCrossentropy", {"gamma": 1.5}),
        (
            SigmoidFocal(2.0, 0.3),
            "BinaryFocalCrossentropy",
            {"gamma": 2.0, "alpha": 0.3, "apply_class_balancing": True},
        ),
    ]
    for ours, name, more in pairs:
        theirs = getattr(keras.losses, name)(from_logits=True, dtype="float64", **more)
        wanted = float(theirs(y.astype(float), x))
        assert ours.evaluate(False, x, y) == pytest.approx(wanted, rel=1e-6)
    p = 1 / (1 + np.exp(-x))
    smoothed = BinaryCrossEntropy(label_smoothing=0.2).evaluate(False, p, y)
    assert smoothed == pytest.approx(pairs[0][0].evaluate(False, x, y))


def test_focus_at_the_ends() -> None:
    x = np.array([1e4, -1e4, 1e4, -1e4], np.float32)
    loss = SigmoidFocal(0.5, reduction="sum")
    found = loss.forward(True, x, np.array([1, 0, 0, 1]))
    np.testing.assert_array_equal(found, [0, 0, 1e4, 1e4])
    np.testing.assert_allclose(loss.backward(), [0, 0, 1, -1], atol=1e-37)
    for bad in (0.0, 1.0, "a", True):
        with pytest.raises(ArgumentError, match=r"SigmoidFocal\(alpha=\)"):
            SigmoidFocal(alpha=bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"SigmoidFocal\(gamma=\)"):
        SigmoidFocal(-1.0)


def test_bad_targets() -> None:
    with pytest.raises(DataError, match=r"from 0 to 1; received 2.0 at index \(1, 0\)"):
        SigmoidCrossEntropy().forward(True, np.zeros((2, 2)), np.array([[0, 1], [2, 0]]))
    with pytest.raises(DataError, match=r"received -0.5 at index 1"):
        SigmoidCrossEntropy().forward(True, np.zeros(2), np.array([0, -0.5]))
    with pytest.raises(ShapeError, match=r"\(2, 1\)"):
        SigmoidCrossEntropy().forward(True, np.zeros((2, 1)), np.array([0, 1]))


@pytest.mark.parametrize("weight", [-1.0, math.nan, [], [[1.0]], "a", [1.0, -2.0]])
def test_bad_weights(weight: Any) -> None:
    with pytest.raises(ArgumentError, match="pos_weight"):
        SigmoidCrossEntropy(pos_weight=weight)
    with pytest.raises(ArgumentError, match="class_weight"):
        SigmoidCrossEntropy(class_weight=weight)


def test_weights_for_other_classes() -> None:
    loss = SigmoidCrossEntropy(class_weight=[1.0, 2.0])
    with pytest.raises(ShapeError, match=r"2 classes.*shape \(4, 3\)"):
        loss.forward(True, np.zeros((4, 3)), np.zeros((4, 3)))


draws = np.random.default_rng(0)


@pytest.mark.parametrize("weights", [(None, None), (3.0, None), (2.0, [1.0, 0.5, 0.0])])
def test_agrees_with_the_loss_of_scores(weights: Any) -> None:
    scores, y = draws.normal(size=(4, 3)), draws.random((4, 3))
    p = 1 / (1 + np.exp(-scores))
    ours, other = BinaryCrossEntropy(*weights), SigmoidCrossEntropy(*weights)
    np.testing.assert_allclose(ours.forward(True, p, y), other.forward(True, scores, y))
    np.testing.assert_allclose(ours.backward() * p * (1 - p), other.backward(), atol=1e-15)
    assert ours.link(p) is p


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certainty_stays_finite(dtype: Any) -> None:
    x = np.array([0.0, 1.0, 0.0, 1.0], dtype)
    loss = BinaryCrossEntropy(reduction="sum")
    values = loss.forward(True, x, np.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(values[:2], 0)
    np.testing.assert_allclose(values[2:], -np.log(np.finfo(dtype).tiny), rtol=1e-6)
    dx = loss.backward()
    assert np.isfinite(dx).all()
    assert dx[2] < 0 < dx[3]


def test_outputs_that_are_no_probabilities() -> None:
    for x in ([-0.1, 0.5], [0.5, 1.5]):
        with pytest.raises(DataError, match="use SigmoidCrossEntropy"):
            BinaryCrossEntropy().forward(True, np.array(x), np.zeros(2))
    with pytest.raises(DataError, match="from 0 to 1"):
        BinaryCrossEntropy().forward(True, np.array([0.5]), np.array([2]))
    with pytest.raises(ArgumentError, match=r"BinaryCrossEntropy\(pos_weight=\)"):
        BinaryCrossEntropy(pos_weight=-1.0)


@pytest.mark.parametrize("make", [SigmoidCrossEntropy, BinaryCrossEntropy])
def test_targets_that_are_no_numbers(make: Any) -> None:
    x, y = np.full((2, 3), 0.5), np.zeros((2, 3))
    y[1, 2] = np.nan
    with pytest.raises(DataError, match=r"from 0 to 1; received nan at index \(1, 2\)"):
        make().forward(True, x, y)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("weights", [(None, None), (3.0, None), (2.0, [1.0, 0.5, 0.0])])
def test_infinite_scores(weights: Any) -> None:
    inf = math.inf
    x = np.array([[inf, -inf, inf], [-inf, inf, -inf], [inf, -inf, 0.0]])
    y = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0]])
    kept = np.ones(3) if weights[1] is None else np.array(weights[1])
    expected = np.array([[0, 0, 0], [inf, inf, 0], [inf, inf, (weights[0] or 1) * math.log(2)]])
    expected = np.where(kept > 0, expected * np.where(kept > 0, kept, 1), 0)
    loss = SigmoidCrossEntropy(*weights)
    for row in range(3):
        given = x[row : row + 1].T.copy(), y[row : row + 1].T.copy()
        if weights[1] is None:
            np.testing.assert_allclose(loss.forward(True, *given), expected[row])
        else:
            found = loss.evaluate(True, x[row : row + 1], y[row : row + 1])
            assert found == pytest.approx(expected[row].mean())
        assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize("kind", [BinaryCrossEntropy, KLDivergence, Hinge])
def test_a_drawn_loss_is_recorded_without_a_look_at_values(kind: Any) -> None:
    """What stands for arrays while a step is recorded are neither probabilities nor signs."""
    x, y = Input("x", (4,)), Input("y", (4,))
    told = StopGradient("told")(Softmax("softmax")(Dense("teacher", 4)(x)))
    told = (told > 0.25).astype("float") if kind is Hinge else told
    scores = Dense("fc", 4, activation="sigmoid" if kind is BinaryCrossEntropy else None)(x)
    loss = kind()(scores, y if kind is BinaryCrossEntropy else told)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)]}, seed=0)
    rng = np.random.default_rng(0)
    feed = {x: rng.random((5, 4)), y: rng.random((5, 4))}
    feed = feed if kind is BinaryCrossEntropy else {x: feed[x]}
    values = [executor.run("train", feed)[0] for _ in range(4)]
    assert values == sorted(values, reverse=True)
