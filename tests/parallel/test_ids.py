"""The distinct ones of ids, and what is known of those that were told."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.numpy.linear import runs_of
from singanet.parallel.cached_rows import KnownIds, distinct


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 5000),
    st.sampled_from([3, 1 << 16, (1 << 16) + 5, 1 << 32, 1 << 40]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_they_are_those_of_numpy(count, most, negative, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(-3 if negative else 0, most, count)
    # Some come often.
    ids[: count // 2] = ids[rng.integers(0, max(count // 8, 1), count // 2)] if count else ids
    rows, places = np.unique(ids, return_inverse=True)
    found = distinct(ids)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.places, places)
    assert found.rows.dtype == np.int64
    np.testing.assert_array_equal(runs_of(np, ids).order, np.argsort(ids, kind="stable"))
    grads = rng.normal(size=(count, 3)).astype(np.float32)
    told, expected = numpy_ops.sum_rows(ids, grads, lambda _: found.runs), np.zeros((len(rows), 3))
    np.add.at(expected, places, grads)
    np.testing.assert_array_equal(told[0], rows)
    np.testing.assert_allclose(told[1], expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(told, numpy_ops.sum_rows(ids, grads), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_told_is_known_until_it_is_written():
    known, ids = KnownIds(), np.arange(50).reshape(5, 10) % 7
    known.join()
    first = known.of(ids)
    assert known.of(ids.copy()) is first
    assert known.of(ids.reshape(-1)) is first
    ids[0, 1] = 9
    again = known.of(ids)
    assert again is not first
    assert again.rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert known.of(np.arange(50) % 7) is first


def test_as_many_are_kept_as_tables_need():
    known = KnownIds()
    known.join()
    known.join()
    made = [known.of(np.full(3, k)) for k in range(8)]
    assert known.of(np.full(3, 0)) is made[0]
    known.of(np.full(3, 9))
    assert known.of(np.full(3, 0)) is not made[0]


def test_no_ids():
    found = distinct(np.empty(0, np.int64))
    assert (len(found.rows), len(found.places)) == (0, 0)
