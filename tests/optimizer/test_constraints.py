"""Bounds on gradients and weights against their formulas."""

from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.optimizer import LAMB, SGD, ClipNorm, Constraint, L2Constraint, MaxNorm
from singanet.optimizer.regularization import sum_of_squares
from singanet.types import RowSparse

rng = np.random.default_rng(0)


def test_singas_constraint():
    g = rng.normal(size=(3, 4))
    expected = g * 0.02 / (np.linalg.norm(g) / g.size)
    np.testing.assert_allclose(L2Constraint(0.02).apply(0, g, g), expected)
    w = np.zeros((3, 4))
    SGD(lr=1.0, constraint=L2Constraint(0.02)).update(["w"], [w], [g], scale=7.0)
    np.testing.assert_allclose(w, -expected)
    zero = np.zeros(3)
    np.testing.assert_array_equal(L2Constraint(0.02).apply(0, zero, zero), zero)


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_clip_norm(size):
    g = rng.normal(size=(3, 4))
    g *= size / np.linalg.norm(g)
    expected = g * min(1.0, 1.0 / size)
    np.testing.assert_allclose(ClipNorm(1.0).apply(0, g, g), expected)
    w = np.zeros((3, 4))
    SGD(lr=1.0, constraint=1.0).update(["w"], [w], [g], scale=2.0)
    np.testing.assert_allclose(w, -2 * g * min(1.0, 1.0 / (2 * size)))


def test_max_norm_bounds_the_weights_after_the_update():
    w, g = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    moved = w - 0.5 * g
    units = np.linalg.norm(moved, axis=0)
    limit = float(np.median(units))
    SGD(lr=0.5, constraint=MaxNorm(limit, axis=0)).update(["w"], [w], [g])
    np.testing.assert_allclose(w, moved * np.minimum(1, limit / units))
    whole = moved.copy()
    MaxNorm(0.1).project(whole)
    np.testing.assert_allclose(whole, moved * 0.1 / np.linalg.norm(moved))
    zero = np.zeros(3)
    MaxNorm(1.0).project(zero)
    np.testing.assert_array_equal(zero, 0)


def test_max_norm_of_kernels_is_keras_own():
    keras = pytest.importorskip("keras")
    kernel = np.random.default_rng(1).normal(size=(3, 3, 4, 5))
    theirs = keras.constraints.MaxNorm(2.0, axis=[0, 1, 2])(keras.ops.convert_to_tensor(kernel))
    ours = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
    MaxNorm(2.0, axis=[1, 2, 3]).project(ours)
    np.testing.assert_allclose(ours.transpose(2, 3, 1, 0), np.asarray(theirs), rtol=1e-6)


WHOLE = [ClipNorm(0.5), L2Constraint(0.5), MaxNorm(0.5), MaxNorm(0.5, axis=0)]
RULES = [*(partial(SGD, lr=0.5, constraint=each) for each in WHOLE), partial(LAMB, lr=0.5)]


@pytest.mark.parametrize("make", RULES)
@pytest.mark.parametrize("rows", [[1, 3, 4], [2, 3, 4]])
def test_rows_whose_update_is_one_are_not_parted(make, rows):
    """Of more numbers than go through a rule at a time, with rows apart or side by side."""
    table, grad = rng.normal(size=(6, 40_000)), rng.normal(size=(3, 40_000))
    scattered, expected, alone = table.copy(), table.copy(), table[rows]
    make().update(["t"], [scattered], [RowSparse(np.array(rows), grad)])
    make().update(["t"], [alone], [grad])
    expected[rows] = alone
    np.testing.assert_allclose(scattered, expected, rtol=1e-12)


def test_norm_of_rows_of_large_and_of_strided_gradients():
    rows = rng.normal(size=(5, 3))
    assert sum_of_squares(RowSparse(np.arange(5), rows)) == pytest.approx((rows**2).sum())
    large = rng.normal(size=(3, 100_003)).astype(np.float32)
    for view in (large, large.T, large[:, ::2], large[:0]):
        exact = (view.astype(float) ** 2).sum()
        assert sum_of_squares(view) == pytest.approx(exact, rel=1e-5)


def test_the_base_changes_nothing():
    g = rng.normal(size=3)
    np.testing.assert_array_equal(Constraint(1.0).apply(0, g, g), g)


@pytest.mark.parametrize("kind", [ClipNorm, L2Constraint, MaxNorm])
@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), "x"])
def test_bad_thresholds(kind, bad):
    with pytest.raises(ArgumentError, match="threshold"):
        kind(bad)


def test_bad_axis():
    with pytest.raises(ArgumentError, match="axis"):
        MaxNorm(1.0, axis="rows")
