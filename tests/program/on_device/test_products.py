"""Products by addresses, with a BLAS of the test's own that works as cuBLAS is told to."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singanet.program.on_device.device_products import product


class ByAddresses:
    """Products as a BLAS by columns makes them: c' = op(b) op(a), read from memory itself."""

    def ready(self, kind, shape, a, b, c):
        m, k, n = shape
        letter = {4: ctypes.c_float, 8: ctypes.c_double}[kind.itemsize]

        def lines(address, count, length, leading):
            span = (count - 1) * leading + length
            flat = np.ctypeslib.as_array((letter * span).from_address(address))
            strides = (leading * kind.itemsize, kind.itemsize)
            return np.lib.stride_tricks.as_strided(flat, (count, length), strides)

        def matrix(one, which, rows, columns):
            if one.by_columns:
                return lines(one.at[which], columns, rows, one.leading).T
            return lines(one.at[which], rows, columns, one.leading)

        def run():
            assert len(a.at) == len(b.at) == len(c.at)
            assert not c.by_columns
            for which in range(len(c.at)):
                made = matrix(a, which, m, k) @ matrix(b, which, k, n)
                matrix(c, which, m, n)[...] = made

        return run


@st.composite
def arrays(draw, shape):
    """An array of ``shape`` that lies in a larger one, its axes in any order."""
    kind = draw(st.shared(st.sampled_from([np.float32, np.float64]), key="kind"))
    order = draw(st.permutations(range(len(shape))))
    room = [shape[axis] + draw(st.integers(0, 2)) for axis in order]
    numbers = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(room).astype(kind)
    part = numbers[tuple(slice(0, shape[axis]) for axis in order)]
    return part.transpose(np.argsort(order)) if shape else part


sizes = st.integers(1, 4)


@given(st.data())
def test_it_is_the_product_of_numpy_however_the_arrays_lie(data):
    m, k, n = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    ahead = tuple(data.draw(st.lists(sizes, max_size=2)))
    repeated = tuple(1 if data.draw(st.booleans()) else count for count in ahead)
    a, b = data.draw(arrays((*ahead, m, k))), data.draw(arrays((*repeated, k, n)))
    out = data.draw(arrays((*ahead, m, n)))
    want = np.matmul(a, b)
    run = product(ByAddresses(), a, b, out)
    if run is not None:
        run()
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    lie_plainly = all(array.flags.c_contiguous for array in (a, b, out))
    assert run is not None or not lie_plainly


@given(st.data())
def test_vectors_are_rows_and_columns(data):
    k, n = data.draw(sizes), data.draw(sizes)
    row, square = data.draw(arrays((k,))), data.draw(arrays((k, n)))
    for a, b, shape in ((row, square, (n,)), (square.T, row, (n,))):
        out = np.empty(shape, a.dtype)
        run = product(ByAddresses(), a, b, out)
        if run is not None:
            run()
            np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


def test_other_types_and_gaps_along_both_axes_are_left_to_others():
    a, b, out = np.ones((2, 3)), np.ones((3, 2)), np.zeros((2, 2))
    narrow = [array.astype(np.float16) for array in (a, b, out)]
    assert product(ByAddresses(), *narrow) is None
    assert product(ByAddresses(), a.astype(np.float32), b, out) is None
    assert product(ByAddresses(), np.ones((4, 6))[::2, ::2], b, out) is None
    assert product(ByAddresses(), np.ones((2, 0)), np.ones((0, 2)), out) is None
