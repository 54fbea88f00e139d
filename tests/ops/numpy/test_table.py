"""Gradients added up by row, beside sums in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 120),
    table=st.integers(1, 40),
    shape=st.sampled_from([(), (1,), (3,), (31,), (32,), (70,), (5, 9)]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    skew=st.booleans(),
    seed=st.integers(0, 50),
)
def test_rows_are_summed_once_each_and_rising(count, table, shape, dtype, skew, seed):
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, table, count)
    if skew:
        # Long runs beside single ones.
        indices = np.where(rng.random(count) < 0.6, 0, indices)
    rows = rng.standard_normal((count, *shape)).astype(dtype)
    before = rows.copy()
    found, sums = numpy_ops.sum_rows(indices, rows)
    whole = np.zeros((table, *shape))
    np.add.at(whole, indices, rows.astype(float))
    np.testing.assert_array_equal(found, np.unique(indices))
    assert sums.dtype == dtype
    tolerance = 5e-2 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(sums, whole[found], rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("width", [4, 64])
def test_infinite_and_missing_numbers_stay_in_their_row(width):
    indices = np.repeat([2, 5, 7], [40, 3, 1])
    rows = np.ones((44, width), np.float32)
    rows[40] = np.inf
    rows[43] = np.nan
    _, sums = numpy_ops.sum_rows(indices, rows)
    np.testing.assert_array_equal(sums[0], 40.0)
    assert np.isinf(sums[1]).all()
    assert np.isnan(sums[2]).all()
