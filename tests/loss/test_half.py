"""Losses and gradients of float16 equal those of the same numbers in float32."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import loss

RNG = np.random.default_rng(0)
PIXELS = (2, 1, 200, 200)
"""More than float16 could count."""

LARGE = (RNG.standard_normal(PIXELS) * 20000).clip(-60000, 60000)
SCORES = RNG.standard_normal((4, 5)) * 300
CHANCES = RNG.random(PIXELS)
SHARES = np.full((3, 5), 0.2)
LABELS = RNG.integers(0, 5, 4)
YES = RNG.integers(0, 2, PIXELS)
VECTORS, TARGETS = RNG.standard_normal((2, 3, 500)).clip(-3, 3) * 20000

CASES = {
    "BinaryCrossEntropy": (loss.BinaryCrossEntropy, CHANCES, YES),
    "CategoricalCrossEntropy": (loss.CategoricalCrossEntropy, SHARES, LABELS[:3]),
    "CosineSimilarity": (loss.CosineSimilarity, VECTORS, TARGETS),
    "CTC": (loss.CTC, RNG.standard_normal((2, 9, 5)) * 9, np.array([[1, 2], [3, 3]])),
    "Dice": (loss.Dice, CHANCES, YES),
    "GaussianNLL": (loss.GaussianNLL, RNG.standard_normal((3, 400)), RNG.standard_normal((3, 200))),
    "Hinge": (loss.Hinge, LARGE, 2 * YES - 1),
    "Huber": (loss.Huber, LARGE, -LARGE / 3),
    "KLDivergence": (loss.KLDivergence, SHARES, SHARES),
    "MeanAbsoluteError": (loss.MeanAbsoluteError, LARGE, -LARGE / 3),
    "MeanSquaredError": (loss.MeanSquaredError, LARGE, -LARGE / 3),
    "Poisson": (loss.Poisson, CHANCES + 1, 100 * YES),
    "SigmoidCrossEntropy": (loss.SigmoidCrossEntropy, LARGE, YES),
    "SigmoidFocal": (loss.SigmoidFocal, LARGE / 1000, YES),
    "SmoothL1": (loss.SmoothL1, LARGE, -LARGE / 3),
    "SoftmaxCrossEntropy": (loss.SoftmaxCrossEntropy, SCORES, LABELS),
    "SoftmaxFocal": (loss.SoftmaxFocal, SCORES / 100, LABELS),
    "SquaredError": (loss.SquaredError, LARGE, -LARGE / 3),
    "TripletMargin": (loss.TripletMargin, RNG.standard_normal((3, 3, 500)) * 900,
        np.array([1, -1, 1])),
}  # fmt: skip


def test_every_loss_is_here():
    assert {*CASES} == {*loss.__all__} - {"Loss", "MultiLoss", "HeadLoss"}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_float16_is_computed_in_float32(name, reduction):
    make, x, y = CASES[name]
    x = x.astype(np.float16)
    y = y.astype(np.float16) if y.dtype.kind == "f" else y
    one, other = make(reduction=reduction), make(reduction=reduction)
    losses = one.forward(True, x, y)
    wide = y.astype(np.float32) if y.dtype.kind == "f" else y
    exact = other.forward(True, x.astype(np.float32), wide)
    assert losses.dtype == np.float32
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(losses, exact)
    dx = one.backward()
    assert dx.dtype == np.float16
    np.testing.assert_array_equal(dx, other.backward().astype(np.float16))
