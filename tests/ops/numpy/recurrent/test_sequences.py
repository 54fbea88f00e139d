"""Layouts of batches of sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import NumpyOps, numpy_ops


def host(array):
    return array.get() if hasattr(array, "get") else array


@given(lengths=st.lists(st.integers(0, 4), max_size=6))
def test_sorting_in_and_out_gives_every_sample_back(lengths):
    n, steps = len(lengths), 4
    order = np.argsort([-length for length in lengths], kind="stable").astype(int)
    counts = [sum(length > t for length in lengths) for t in range(steps)]
    x = np.random.default_rng(0).standard_normal((n, steps, 2))
    rows = numpy_ops.time_major(x, order, counts)
    assert rows.flags.c_contiguous
    back = numpy_ops.batch_major(rows, np.argsort(order))
    for s, length in enumerate(lengths):
        np.testing.assert_array_equal(back[s, :length], x[s, :length])
        assert not back[s, length:].any()


def test_whole_batches_are_copied_only_where_they_must_be(rng):
    x = rng.standard_normal((3, 4, 2))
    rows = numpy_ops.time_major(x)
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, x.transpose(1, 0, 2))
    again = numpy_ops.time_major(numpy_ops.batch_major(rows))
    assert np.shares_memory(again, rows)
    # With counts the rows past them are cleared, so the caller's memory must not be used.
    cleared = numpy_ops.time_major(rows.transpose(1, 0, 2), None, [3, 1, 1, 0])
    assert not np.shares_memory(cleared, rows)


def test_directions_stand_side_by_side(xp, rng):
    ops = NumpyOps(xp)
    a, b = (xp.asarray(rng.standard_normal((3, 2, 4))) for _ in range(2))
    assert ops.side_by_side([a], None) is a
    joined = host(ops.side_by_side([a, b], [2, 1, 0]))
    np.testing.assert_array_equal(joined[0], np.concatenate([host(a)[0], host(b)[0]], axis=1))
    np.testing.assert_array_equal(joined[1, 0, 4:], host(b)[1, 0])
    assert not joined[1, 1].any()
    assert not joined[2].any()


def test_host_arrays_are_numpys(xp):
    assert isinstance(NumpyOps(xp).host(xp.arange(3)), np.ndarray)
