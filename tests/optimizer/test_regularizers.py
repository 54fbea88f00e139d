"""Penalties against their formulas, alone and through an optimizer."""

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import SGD, L1Regularizer, L2Regularizer

W = np.array([1.0, -2.0, 0.0])
G = np.array([0.5, 0.5, 0.5])


def test_formulas():
    np.testing.assert_allclose(L2Regularizer(1e-4).apply(0, W, G), G + 1e-4 * W)
    np.testing.assert_allclose(L1Regularizer(0.1).apply(0, W, G), G + 0.1 * np.sign(W))
    np.testing.assert_array_equal(G, 0.5)
    np.testing.assert_array_equal(W, [1, -2, 0])


def test_a_schedule_as_coefficient():
    regularizer = L2Regularizer(lambda step: 0.1 * step)
    np.testing.assert_allclose(regularizer.apply(0, W, G, step=3), G + 0.3 * W)
    np.testing.assert_allclose(regularizer.apply(0, W, G), G)
    w = W.copy()
    optimizer = SGD(lr=1.0, regularizer=regularizer)
    optimizer.update(["w"], [w], [G])
    np.testing.assert_allclose(w, W - G)
    optimizer.update(["w"], [w], [np.zeros(3)])
    np.testing.assert_allclose(w, (W - G) * 0.9)


@pytest.mark.parametrize("kind", [L1Regularizer, L2Regularizer])
@pytest.mark.parametrize("bad", [-1.0, float("nan"), "x", None])
def test_bad_coefficients(kind, bad):
    with pytest.raises(ArgumentError, match="coefficient"):
        kind(bad)
