"""Accuracy against counting by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.metric import Accuracy

rng = np.random.default_rng(4)


def by_sorting(x: Any, y: Any, k: int) -> list[float]:
    """Sort each row by (score descending, class ascending) and look for the label."""
    found = []
    for row, label in zip(x, y, strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        found.append(float(label in order[:k]))
    return found


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_against_sorting_with_many_ties(k: int) -> None:
    x = rng.integers(0, 3, (60, 5)).astype(np.float32)
    y = rng.integers(0, 5, 60)
    np.testing.assert_array_equal(Accuracy(k).forward(x, y), by_sorting(x, y, k))


def test_singas_value() -> None:
    x = np.array([[0.1, 0.3, 0.6], [0.3, 0.2, 0.5]])
    assert Accuracy().evaluate(x, np.array([1, 2])) == 0.5


@pytest.mark.parametrize("k", [1, 2])
def test_a_net_that_has_diverged_is_right_about_nothing(k: int) -> None:
    assert Accuracy(k).evaluate(np.full((4, 3), np.nan), np.array([0, 1, 2, 0])) == 0


def test_a_score_that_is_no_number_ranks_first() -> None:
    x = np.array([[1.0, np.nan, 0.5]])
    assert Accuracy(1).evaluate(x, np.array([0])) == 0
    assert Accuracy(2).evaluate(x, np.array([0])) == 1


def test_bad_targets() -> None:
    x = np.zeros((3, 4))
    with pytest.raises(DataError, match="label 4 at index 2"):
        Accuracy().evaluate(x, np.array([0, 1, 4]))
    with pytest.raises(DataError, match="integer labels"):
        Accuracy().evaluate(x, np.zeros(3))
    with pytest.raises(ShapeError, match=r"received labels of shape \(2,\)"):
        Accuracy().evaluate(x, np.zeros(2, int))
    with pytest.raises(ShapeError, match=r"shape \(2, 4\) for outputs of shape \(3, 4\)"):
        Accuracy().evaluate(x, np.zeros((2, 4)))
    with pytest.raises(DataError, match="classes"):
        Accuracy().evaluate(np.zeros(3), np.zeros(3, int))


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_bad_top_k(k: Any) -> None:
    with pytest.raises(ArgumentError, match="Accuracy, top_k: expected an int of at least 1"):
        Accuracy(top_k=k)
