"""Small products with constant matrices: any size beside float64, and what they leave alone."""

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from singanet.ops.compiled.engine import compiled
from singanet.ops.compiled.pool import product, width_of
from singanet.ops.compiled.sizes import LANES

FUNCTIONS = {}


def function(width, relu):
    if (width, relu) not in FUNCTIONS:
        FUNCTIONS[width, relu] = compiled(product(width, relu))
    return FUNCTIONS[width, relu]


def packed(weight, bias, width):
    """Panels of columns and the bias, filled up with zeros, element by element."""
    inputs, outputs = weight.shape
    panels = -(-outputs // width)
    made, line = np.zeros((panels, inputs, width), np.float32), np.zeros(panels * width, np.float32)
    for column in range(outputs):
        made[column // width, :, column % width] = weight[:, column]
        line[column] = bias[column]
    return made, line


def multiplied(form, x, weight, bias, relu):
    width = width_of(weight.shape[1])
    matrix, line = packed(weight, bias, width)
    y = np.full((len(x) + 1, weight.shape[1]), 7.0, np.float32)
    arrays = [array.ctypes.data for array in (y, x, matrix, line)]
    given = [*arrays, *x.shape, weight.shape[1]]
    found = function(width, relu)
    if form == "call":
        found.call(*given)
    else:
        record = (ctypes.c_int64 * len(given))(*given)
        found.briefly(ctypes.addressof(record))
    # Nothing beyond the last row.
    assert np.all(y[-1] == 7.0)
    return y[:-1]


def test_panels_are_whole_vectors_of_at_most_four():
    assert [width_of(n) for n in (1, 16, 17, 48, 49, 64, 65, 1000)] == [
        *(LANES, LANES, 2 * LANES, 3 * LANES),
        *[4 * LANES] * 4,
    ]


@given(
    st.integers(1, 11),
    st.integers(1, 40),
    st.integers(1, 150),
    st.booleans(),
    st.sampled_from(["call", "briefly"]),
    st.integers(0, 99),
)
def test_any_size_is_the_product(rows, inputs, outputs, relu, form, seed):
    rng = np.random.default_rng(seed)
    x, weight = (rng.standard_normal(s, np.float32) for s in ((rows, inputs), (inputs, outputs)))
    bias = rng.standard_normal(outputs, np.float32)
    exact = x.astype(np.float64) @ weight + bias
    exact = np.maximum(exact, 0) if relu else exact
    scale = np.abs(x.astype(np.float64)) @ np.abs(weight) + np.abs(bias)
    assert np.all(np.abs(multiplied(form, x, weight, bias, relu) - exact) <= 1e-6 * scale)


@pytest.mark.parametrize("relu", [False, True])
def test_a_nan_stays_and_is_its_sample_s_alone(relu):
    x = np.ones((5, 3), np.float32)
    x[1, 2], x[4, 0] = np.nan, np.nan
    y = multiplied("briefly", x, -np.ones((3, 20), np.float32), np.zeros(20), relu)
    assert np.isnan(y[[1, 4]]).all()
    assert np.array_equal(y[[0, 2, 3]], np.full((3, 20), 0.0 if relu else -3.0))
