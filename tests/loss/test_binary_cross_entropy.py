"""Binary cross-entropy of probabilities: the sigmoid's loss seen from the other side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError
from singanet.loss import BinaryCrossEntropy, SigmoidCrossEntropy

rng = np.random.default_rng(0)


@pytest.mark.parametrize("weights", [(None, None), (3.0, None), (2.0, [1.0, 0.5, 0.0])])
def test_agrees_with_the_loss_of_scores(weights: Any) -> None:
    scores, y = rng.normal(size=(4, 3)), rng.random((4, 3))
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
