"""Arithmetic, copies and reductions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops


@pytest.mark.parametrize(
    ("name", "function"),
    [("exp", math.exp), ("log", math.log), ("log1p", math.log1p), ("sqrt", math.sqrt),
     ("square", lambda v: v * v), ("tanh", math.tanh), ("absolute", abs),
     ("negative", lambda v: -v), ("sign", lambda v: 1.0)],
)  # fmt: skip
def test_functions_of_one_array(name, function, rng):
    x = rng.uniform(0.1, 3.0, (3, 4))
    want = np.array([[function(v) for v in row] for row in x])
    np.testing.assert_allclose(getattr(ops, name)(x), want, rtol=1e-14)
    out = np.empty_like(x)
    assert getattr(ops, name)(x, out=out) is out
    np.testing.assert_allclose(out, want, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "function"),
    [("add", lambda a, b: a + b), ("subtract", lambda a, b: a - b),
     ("multiply", lambda a, b: a * b), ("divide", lambda a, b: a / b), ("maximum", max),
     ("minimum", min), ("power", lambda a, b: a**b)],
)  # fmt: skip
def test_functions_of_two_arrays(name, function, rng):
    a, b = rng.uniform(0.1, 3.0, (2, 5))
    want = [function(p, q) for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(getattr(ops, name)(a, b), want, rtol=1e-14)
    single = getattr(ops, name)(a.astype(np.float32), 2.0)
    assert single.dtype == np.float32


@pytest.mark.parametrize("count", [2, 3, 5])
def test_add_all_makes_a_new_array(count, rng):
    parts = list(rng.standard_normal((count, 3, 4)))
    copies = [part.copy() for part in parts]
    total = ops.add_all(parts)
    np.testing.assert_allclose(total, sum(copies[1:], copies[0]), rtol=1e-12)
    for part, copy in zip(parts, copies, strict=True):
        np.testing.assert_array_equal(part, copy)
        assert not np.shares_memory(part, total)


@pytest.mark.parametrize("axis", [0, 1])
def test_concat(axis):
    a, b = np.zeros((2, 2)), np.ones((2, 2))
    want = [[0, 0], [0, 0], [1, 1], [1, 1]] if axis == 0 else [[0, 0, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_array_equal(ops.concat([a, b], axis), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_and_zeros_take_the_type_of_their_model(dtype):
    like = np.ones(2, dtype)
    assert ops.empty((3, 4), like).shape == (3, 4)
    assert ops.empty((3, 4), like).dtype == dtype
    zeros = ops.zeros((3, 4), like)
    assert zeros.dtype == dtype
    assert not zeros.any()


def test_reductions_and_copies(rng):
    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(ops.sum(x, axis=0), [sum(column) for column in x.T], rtol=1e-12)
    np.testing.assert_allclose(ops.mean(x), sum(x.flat) / 12, rtol=1e-12)
    target = np.zeros((3, 4))
    ops.copyto(target, x)
    np.testing.assert_array_equal(target, x)
    assert ops.greater(2.0, 1.0)
    np.testing.assert_array_equal(ops.where(x > 0, x, 0.0), np.maximum(x, 0.0))


def test_the_largest_of_several_and_the_slopes_that_go_to_each():
    one, two = np.array([[1.0, 5.0, 2.0]]), np.array([[4.0, 5.0, 0.0]])
    most = ops.combine("maximum", [one, two], one.shape)
    assert most.tolist() == [[4.0, 5.0, 2.0]]
    where = ops.first_equal(most, [one, two])
    assert where.tolist() == [[1, 0, 0]]
    slopes = np.array([[10.0, 20.0, 30.0]])
    assert ops.select(slopes, where, 0).tolist() == [[0.0, 20.0, 30.0]]
    assert ops.select(slopes, where, 1).tolist() == [[10.0, 0.0, 0.0]]


def test_sums_over_the_axes_that_were_spread():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert ops.sum_to(x, (2, 1, 4)).tolist() == x.sum(axis=1, keepdims=True).tolist()
    assert ops.sum_to(x, (1, 3, 1)).tolist() == [[[60.0], [92.0], [124.0]]]
    assert ops.sum_to(x, x.shape) is x
