"""Softmax and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from singanet.ops import numpy_ops as ops


@given(
    x=arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5),
                    elements=st.floats(-1e6, 1e6)),
    axis=st.integers(-2, 1),
)  # fmt: skip
def test_is_a_distribution_that_a_shift_leaves_alone(x, axis):
    y = ops.softmax(x, axis)
    np.testing.assert_allclose(y.sum(axis=axis), 1.0, rtol=1e-12)
    assert (y >= 0).all()
    shifted = ops.softmax(x + 3.0, axis)
    np.testing.assert_allclose(y, shifted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_gradient_is_that_of_the_jacobian(axis, rng):
    x, dy = rng.standard_normal((2, 3, 4, 5))
    y = ops.softmax(x, axis)
    rows, slopes = np.moveaxis(y, axis, -1), np.moveaxis(dy, axis, -1)
    want = np.empty_like(rows)
    for index in np.ndindex(rows.shape[:-1]):
        p = rows[index]
        want[index] = (np.diag(p) - np.outer(p, p)) @ slopes[index]
    np.testing.assert_allclose(
        ops.softmax_backward(dy, y, axis), np.moveaxis(want, -1, axis), rtol=1e-9, atol=1e-14
    )


def test_float32_stays_and_extremes_do_not_overflow():
    x = np.array([[3e38, -3e38], [-3e38, -3e38]], np.float32)
    y = ops.softmax(x[:, :1], 1)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(ops.softmax(x / 4, 1), [[1, 0], [0.5, 0.5]])


def test_the_slopes_of_smoothed_cross_entropies_are_those_of_their_losses(rng):
    x, labels, step = rng.standard_normal((4, 3)), np.array([0, 2, 1, 1]), 1e-6
    _, p = ops.softmax_cross_entropy(x.copy(), labels, 0.25)
    slopes = ops.softmax_cross_entropy_backward(p, labels, 0.25)
    for k in range(3):
        up, down = (
            ops.softmax_cross_entropy(x + sign * step * np.eye(3)[k], labels, 0.25)[0]
            for sign in (1, -1)
        )
        np.testing.assert_allclose(slopes[:, k], (up - down) / (2 * step), rtol=0, atol=1e-8)


def test_smoothing_takes_its_part_from_the_label_for_all_classes():
    x, labels = np.log([[0.5, 0.25, 0.25]]), np.array([0])
    losses, p = ops.softmax_cross_entropy(x, labels, 0.3)
    # Of the target, 0.7 + 0.1 is for the label and 0.1 for each of the others.
    assert losses[0] == pytest.approx(-0.8 * np.log(0.5) - 0.2 * np.log(0.25))
    slopes = ops.softmax_cross_entropy_backward(p, labels, 0.3)
    np.testing.assert_allclose(slopes, [[-0.3, 0.15, 0.15]], rtol=0, atol=1e-12)
