"""Cosine, Dice and triplets against PyTorch, Keras and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss import CosineSimilarity, Dice, TripletMargin

rng = np.random.default_rng(9)


def expect_torch(loss: Any, x: Any, y: Any, function: Any) -> None:
    """Value and gradient of ``function(tensor)``, in the type of ``x``."""
    torch = pytest.importorskip("torch")
    leaf = torch.tensor(x, requires_grad=True)
    value = function(torch, leaf)
    value.backward()
    tolerance = 1e-12 if x.dtype == np.float64 else 1e-5
    assert loss.evaluate(True, x, y) == pytest.approx(value.item(), rel=tolerance)
    np.testing.assert_allclose(loss.backward(), leaf.grad.numpy(), atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cosine_equals_pytorch(dtype: str) -> None:
    x, y = rng.normal(size=(2, 4, 3, 5)).astype(dtype)
    expect_torch(
        CosineSimilarity(),
        x,
        y,
        lambda torch, t: -torch.cosine_similarity(t, torch.tensor(y), dim=-1).mean(),
    )


def test_cosine_of_nothing_is_zero() -> None:
    loss = CosineSimilarity()
    x, y = np.zeros((2, 3)), np.ones((2, 3))
    x[1] = 5.0
    np.testing.assert_allclose(loss.forward(True, x, y), [0, -1])
    assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("swapped", [False, True])
def test_triplets_equal_pytorch(dtype: str, swapped: bool) -> None:
    x = rng.normal(size=(6, 3, 4)).astype(dtype)
    near, far = (2, 1) if swapped else (1, 2)
    expect_torch(
        TripletMargin(0.7),
        x,
        np.full(6, 0 if swapped else 1),
        lambda torch, t: torch.nn.functional.triplet_margin_loss(
            t[:, 0], t[:, near], t[:, far], 0.7
        ),
    )


def test_dice_equals_keras() -> None:
    keras = pytest.importorskip("keras")
    x, y = rng.normal(size=(3, 2, 4, 5)), rng.integers(0, 2, (3, 2, 4, 5)).astype(float)
    p = 1 / (1 + np.exp(-x))
    # Keras' loss of a mean over samples and channels, whose pixels it sums.
    theirs = keras.losses.Dice(axis=(2, 3), dtype="float64")(y, p)
    assert Dice(1e-7).evaluate(False, x, y) == pytest.approx(float(theirs), rel=1e-6)


def test_an_empty_channel_seen_to_be_so_costs_nothing() -> None:
    loss = Dice()
    np.testing.assert_allclose(loss.forward(True, np.full((1, 4), -50.0), np.zeros((1, 4))), 0)
    assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize(
    ("loss", "x", "y", "words"),
    [
        (CosineSimilarity(), (3,), (3,), "CosineSimilarity: expected.*features"),
        (CosineSimilarity(), (3, 2), (3, 1), "CosineSimilarity"),
        (Dice(), (3,), (3,), "Dice: expected outputs of shape"),
        (TripletMargin(), (3, 2, 4), (3,), "TripletMargin.*anchor, positive, negative"),
        (TripletMargin(), (3, 3, 4), (3, 1), "TripletMargin"),
    ],
)
def test_other_shapes_are_refused(loss: Any, x: Any, y: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        loss.forward(True, np.zeros(x), np.zeros(y))


def test_bad_targets_and_arguments() -> None:
    with pytest.raises(DataError, match="among -1, 0 and 1; received 2"):
        TripletMargin().forward(True, np.zeros((1, 3, 4)), np.array([2]))
    with pytest.raises(DataError, match="from 0 to 1"):
        Dice().forward(True, np.zeros((1, 3)), np.full((1, 3), 1.5))
    for make in (Dice, TripletMargin):
        for bad in (0, -1.0, "1", float("inf")):
            with pytest.raises(ArgumentError, match="a finite number above 0"):
                make(bad)
