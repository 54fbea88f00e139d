"""Squared error against its formula; SINGA's mean over elements."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import DataError, ShapeError
from singanet.loss import SquaredError


def test_formula_by_hand() -> None:
    x, y = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([[0.0, 4.0], [0.0, 1.0]])
    loss = SquaredError()
    np.testing.assert_allclose(loss.forward(True, x, y), [(0.5 + 2) / 2, 8 / 2])
    np.testing.assert_allclose(loss.backward(), (x - y) / 4)
    assert loss.evaluate(False, x, y) == pytest.approx((0.5 + 2 + 8) / 4)


def test_singas_gradient() -> None:
    x, y = np.array([[1.0, 2.0]]), np.array([[3, -1]])
    loss = SquaredError(reduction="sum")
    loss.forward(True, x, y)
    np.testing.assert_array_equal(loss.backward(), [[-2, 3]])


def test_link_is_the_identity() -> None:
    x = np.ones((2, 2))
    assert SquaredError().link(x) is x


def test_bad_targets() -> None:
    with pytest.raises(ShapeError, match=r"shape \(3, 1\); received targets of shape \(3,\)"):
        SquaredError().forward(True, np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(DataError, match="numbers"):
        SquaredError().forward(True, np.zeros(2), np.array(["a", "b"]))
    with pytest.raises(DataError, match="numbers"):
        SquaredError().forward(True, np.zeros(2), np.zeros(2, complex))
