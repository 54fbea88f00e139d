"""Precision and recall of the first k: SINGA's oracle values, ties and empty rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.metric import Precision, Recall

X = np.array([[0.7, 0.2, 0.1], [0.2, 0.4, 0.5], [0.2, 0.4, 0.4]], np.float32)


def test_singas_values() -> None:
    precision, recall = Precision(top_k=2), Recall(top_k=2)
    y = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(precision.forward(X, y), [0.5, 1, 0])
    assert precision.evaluate(X, y) == pytest.approx(0.5)
    y = np.array([[1, 0, 1], [1, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(recall.forward(X, y), [0.5, 2 / 3, 0])
    assert recall.evaluate(X, y) == pytest.approx(7 / 18)


def test_ties_go_to_the_lowest_class() -> None:
    y = np.array([[0, 1, 0], [0, 0, 1]])
    x = np.zeros((2, 3))
    np.testing.assert_array_equal(Precision(1).forward(x, y), [0, 0])
    np.testing.assert_array_equal(Precision(2).forward(x, y), [0.5, 0])
    np.testing.assert_array_equal(Recall(2).forward(x, y), [1, 0])


def test_integer_scores_of_any_sign() -> None:
    x = np.array([[0, 200, 3]], np.uint8)
    assert Precision(1).evaluate(x, np.array([[0, 1, 0]])) == 1


def test_a_row_without_a_label_counts_as_zero() -> None:
    y = np.array([[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(Recall(3).forward(X[:2], y), [0, 1])


def test_k_beyond_the_classes() -> None:
    y = np.array([[1, 1, 0]])
    assert Precision(6).evaluate(X[:1], y) == pytest.approx(2 / 6)
    assert Recall(6).evaluate(X[:1], y) == 1


@pytest.mark.parametrize("metric", [Precision, Recall])
def test_bad_input(metric: Any) -> None:
    with pytest.raises(ArgumentError, match="top_k"):
        metric(top_k=0)
    with pytest.raises(ShapeError, match=r"shape \(3,\) for outputs of shape \(3, 3\)"):
        metric().evaluate(X, np.zeros(3, int))
    with pytest.raises(ShapeError, match="outputs of shape"):
        metric().evaluate(X[0], X[0])
    with pytest.raises(DataError, match="rows of 0 and 1"):
        metric().evaluate(X, np.full((3, 3), "a"))
