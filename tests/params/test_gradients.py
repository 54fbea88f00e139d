"""Sums of gradients of which some are row-sparse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops as ops
from singanet.ops import ops_for
from singanet.params.grads import add_gradients, dense_gradient
from singanet.types import RowSparse

SHAPE = (5, 2)


def dense(grad):
    """By a loop over rows."""
    if not isinstance(grad, RowSparse):
        return grad
    total = np.zeros(SHAPE)
    for index, row in zip(grad.indices, grad.rows, strict=True):
        total[index] += row
    return total


SOME = {
    "dense": np.arange(10.0).reshape(SHAPE),
    "sparse": RowSparse(np.array([1, 4]), np.array([[1.0, 2], [3, 4]])),
    "other": RowSparse(np.array([0, 1]), np.array([[10.0, 20], [30, 40]])),
    "empty": RowSparse(np.zeros(0, np.int64), np.zeros((0, 2))),
}


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SOME, repeat=2)))
def test_sums_equal_those_of_dense_gradients_and_change_neither(a, b):
    before = {name: dense(SOME[name]).copy() for name in (a, b)}
    total = add_gradients(ops, SOME[a], SOME[b])
    assert isinstance(total, RowSparse) == (a != "dense" and b != "dense")
    np.testing.assert_array_equal(dense(total), before[a] + before[b])
    for name, value in before.items():
        np.testing.assert_array_equal(dense(SOME[name]), value)
    if not isinstance(total, RowSparse):
        assert not np.shares_memory(total, SOME["dense"])


def test_the_sum_of_sparse_gradients_has_each_row_once_in_order():
    total = add_gradients(ops, SOME["sparse"], SOME["other"])
    np.testing.assert_array_equal(total.indices, [0, 1, 4])
    np.testing.assert_array_equal(total.rows, [[10, 20], [31, 42], [3, 4]])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=20))
def test_sum_rows_equals_a_loop(pairs):
    indices = np.array([index for index, _ in pairs], np.uint8)
    rows = np.array([[value, -value] for _, value in pairs], np.float32).reshape(-1, 2)
    expected = {}
    for index, value in pairs:
        expected[index] = expected.get(index, 0) + value
    found, sums = ops.sum_rows(indices, rows)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(expected)
    assert sums.dtype == np.float32
    assert sums.tolist() == [[expected[index], -expected[index]] for index in sorted(expected)]


def test_dense_form(xp):
    sparse = RowSparse(*(xp.asarray(part) for part in SOME["sparse"]))
    kernels = ops_for(sparse.rows)
    made = dense_gradient(kernels, sparse, SHAPE)
    host = made.get() if hasattr(made, "get") else made
    np.testing.assert_array_equal(host, dense(SOME["sparse"]))
    assert dense_gradient(kernels, made, SHAPE) is made


def test_sum_rows_on_the_device(xp):
    indices = xp.asarray(np.array([3, 0, 3, 3]))
    rows = xp.asarray(np.array([[1.0], [2], [4], [8]]))
    found, sums = ops_for(rows).sum_rows(indices, rows)
    assert found.tolist() == [0, 3]
    assert sums.tolist() == [[2.0], [13.0]]
