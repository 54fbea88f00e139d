"""Hinge by hand."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError
from singanet.loss import Hinge


def test_by_hand() -> None:
    x = np.array([[0.5, -2.0], [3.0, 0.25]])
    for y in ([[1, -1], [-1, -1]], [[1, 0], [0, 0]]):
        loss = Hinge()
        values = loss.forward(True, x, np.array(y))
        np.testing.assert_allclose(values, [(0.5 + 0) / 2, (4 + 1.25) / 2])
        np.testing.assert_allclose(loss.backward(), np.array([[-1, 0], [1, 1]]) / 4)
    squared = Hinge(margin=2.0, squared=True)
    values = squared.forward(True, x, np.array([[1, -1], [-1, -1]]))
    np.testing.assert_allclose(values, [1.5**2 / 2, (25 + 2.25**2) / 2])
    np.testing.assert_allclose(squared.backward(), np.array([[-3, 0], [10, 4.5]]) / 4)


def test_bad_targets_and_margins() -> None:
    with pytest.raises(DataError, match="among -1, 0 and 1; received 2"):
        Hinge().forward(True, np.zeros(3), np.array([1, 2, 0]))
    with pytest.raises(DataError, match="received nan"):
        Hinge().forward(True, np.zeros(1), np.array([np.nan]))
    for margin in (0, -1.0, float("nan"), None):
        with pytest.raises(ArgumentError, match="margin"):
            Hinge(margin)  # type: ignore[arg-type]
