"""Images lie channels-last in memory from one kernel to the next: copies between cost passes."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops


def images(n=2, c=3, h=4, w=5, seed=0):
    """Random ones, channels-last in memory."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, h, w, c), np.float32).transpose(0, 3, 1, 2)


def is_channels_last(array):
    return array.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("mode", ["add", "multiply", "maximum"])
def test_combine(mode):
    x, y, row = images(), images(seed=1), images(1, 3, 1, 1, seed=2)
    for arrays in ([x, y], [x, row], [row, x], [x, y, row]):
        got = ops.combine(mode, arrays, x.shape)
        assert is_channels_last(got)
        want = np.array(arrays[0])
        for array in arrays[1:]:
            want = getattr(np, mode)(want, array)
        np.testing.assert_array_equal(got, want)


def test_combine_of_parts_alone():
    """No input has the shape of the result."""
    column, row = np.ones((2, 3, 1), np.float32), np.full((2, 1, 4), 2, np.float32)
    got = ops.combine("add", [column, row], (2, 3, 4))
    np.testing.assert_array_equal(got, np.full((2, 3, 4), 3, np.float32))


@pytest.mark.parametrize(
    "pads", [((0, 0), (1, 2), (0, 0), (0, 0)), ((0, 0), (0, 0), (2, 1), (0, 3))]
)
def test_pad(pads):
    x = images()
    got = ops.pad(x, pads, -1.5)
    assert is_channels_last(got)
    np.testing.assert_array_equal(got, np.pad(x, pads, constant_values=-1.5))


def test_pad_in_c_order():
    x = np.arange(6.0).reshape(2, 3)
    got = ops.pad(x, ((1, 0), (0, 2)), 0.0)
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, np.pad(x, ((1, 0), (0, 2))))


def test_pad_of_an_axis_of_one():
    """Strides of such an axis mean nothing."""
    x = images(1, 1, 1, 4)
    np.testing.assert_array_equal(ops.pad(x, ((1, 1),) * 4, 7.0), np.pad(x, 1, constant_values=7))
