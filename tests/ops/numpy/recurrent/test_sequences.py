"""Layouts of batches of sequences."""

from __future__ import annotations

import numpy as np

from singanet.ops import NumpyOps, numpy_ops


def host(array):
    return array.get() if hasattr(array, "get") else array


def test_skipped_steps_are_zero_in_a_copy(xp, rng):
    x = rng.standard_normal((3, 4, 2))
    skips = np.arange(12).reshape(4, 3, 1) % 5 == 0
    given = xp.asarray(x)
    rows = NumpyOps(xp).time_major(given, xp.asarray(skips))
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(host(rows), np.where(skips, 0, x.transpose(1, 0, 2)))
    np.testing.assert_array_equal(host(given), x)
    np.testing.assert_array_equal(host(NumpyOps(xp).batch_major(rows))[0], host(rows)[:, 0])


def test_whole_batches_are_copied_only_where_they_must_be(rng):
    x = rng.standard_normal((3, 4, 2))
    rows = numpy_ops.time_major(x)
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, x.transpose(1, 0, 2))
    again = numpy_ops.time_major(numpy_ops.batch_major(rows))
    assert np.shares_memory(again, rows)
    # Skipped steps are cleared, so the caller's memory must not be used.
    cleared = numpy_ops.time_major(rows.transpose(1, 0, 2), np.zeros((4, 3, 1), bool))
    assert not np.shares_memory(cleared, rows)


def test_directions_stand_side_by_side(xp, rng):
    ops = NumpyOps(xp)
    a, b = (xp.asarray(rng.standard_normal((3, 2, 4))) for _ in range(2))
    assert ops.side_by_side([a], None) is a
    skips = np.array([[[0], [0]], [[0], [1]], [[1], [1]]], bool)
    joined = host(ops.side_by_side([a, b], xp.asarray(skips)))
    wanted = np.where(skips, 0, np.concatenate([host(a), host(b)], axis=2))
    np.testing.assert_array_equal(joined, wanted)


def test_host_arrays_are_numpys(xp):
    assert isinstance(NumpyOps(xp).host(xp.arange(3)), np.ndarray)
