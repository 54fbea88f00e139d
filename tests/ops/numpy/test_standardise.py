"""Layer, group and L2 normalisation by their definitions, gradients by differences."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops

EPSILON, STEP = 1e-3, 1e-6


def standard(rows):
    return (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + EPSILON)


def slope(function, array, dy):
    """Of the sum of ``dy`` times what ``function`` gives, element by element of ``array``."""
    found = np.empty_like(array)
    for index in np.ndindex(array.shape):
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * STEP
            ends.append((function(moved) * dy).sum())
        found[index] = (ends[0] - ends[1]) / (2 * STEP)
    return found


def expect_slopes(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("scaled", [False, True])
def test_rows(scaled, rng):
    x, dy = rng.standard_normal((2, 3, 5))
    gamma, beta = rng.standard_normal((2, 5)) if scaled else (None, None)

    def wanted(x, gamma=gamma, beta=beta):
        return standard(x) if gamma is None else gamma * standard(x) + beta

    y, statistics = ops.layer_norm(x, gamma, beta, EPSILON)
    np.testing.assert_allclose(y, wanted(x), rtol=1e-10)
    dx, dgamma, dbeta = ops.layer_norm_backward(dy, x, gamma, statistics)
    expect_slopes([dx], [slope(wanted, x, dy)])
    if scaled:
        of_gamma = slope(lambda g: wanted(x, g), gamma, dy)
        expect_slopes([dgamma, dbeta], [of_gamma, slope(lambda b: wanted(x, gamma, b), beta, dy)])
    else:
        assert dgamma is dbeta is None


@pytest.mark.parametrize(("groups", "scaled"), [(1, True), (2, False), (2, True), (4, True)])
def test_groups_of_channels(groups, scaled, rng):
    x, dy = rng.standard_normal((2, 2, 4, 3, 2))
    gamma, beta = rng.standard_normal((2, 4)) if scaled else (None, None)

    def wanted(x, gamma=gamma, beta=beta):
        y = standard(x.reshape(2 * groups, -1)).reshape(x.shape)
        return y if gamma is None else gamma[:, None, None] * y + beta[:, None, None]

    y, statistics = ops.group_norm(x, groups, gamma, beta, EPSILON)
    np.testing.assert_allclose(y, wanted(x), rtol=1e-10)
    dx, dgamma, dbeta = ops.group_norm_backward(dy, x, groups, gamma, statistics)
    expect_slopes([dx], [slope(wanted, x, dy)])
    if scaled:
        of_gamma = slope(lambda g: wanted(x, g), gamma, dy)
        expect_slopes([dgamma, dbeta], [of_gamma, slope(lambda b: wanted(x, gamma, b), beta, dy)])
    else:
        assert dgamma is dbeta is None


def test_lengths(rng):
    x, dy = rng.standard_normal((2, 3, 4))

    def wanted(x):
        return x / np.sqrt((x**2).sum(1, keepdims=True) + EPSILON)

    y, inverse = ops.l2_norm(x, EPSILON)
    np.testing.assert_allclose(y, wanted(x), rtol=1e-12)
    expect_slopes([ops.l2_norm_backward(dy, y, inverse)], [slope(wanted, x, dy)])
