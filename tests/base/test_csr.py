"""Rows of sparse matrices, beside SciPy's own."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.base.columns import by_rows, is_sparse
from singanet.errors import DataError
from singanet.types import CSRMatrix


def dense(matrix):
    made = np.zeros(matrix.shape, matrix.dtype)
    np.add.at(made, (matrix.entry_rows(), matrix.indices), matrix.values)
    return made


@st.composite
def coordinates(draw):
    """A COO matrix in any order, with duplicates, explicit zeros and empty rows."""
    rows, columns = draw(st.integers(0, 6)), draw(st.integers(1, 7))
    count = draw(st.integers(0, 20)) if rows else 0
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(-3, 4, count).astype(draw(st.sampled_from(["f4", "f8", "i8", "?"])))
    at = rng.integers(0, max(rows, 1), count), rng.integers(0, columns, count)
    return scipy.sparse.coo_array((values, at), shape=(rows, columns))


@settings(max_examples=60, deadline=None)
@given(
    coo=coordinates(), form=st.sampled_from(["coo", "csr", "csc", "lil"]), seed=st.integers(0, 9)
)
def test_rows_are_those_of_scipy(coo, form, seed):
    given_ = coo.asformat(form)
    before = given_.copy()
    made = by_rows("x", given_)
    np.testing.assert_array_equal(dense(made), coo.toarray())
    assert (made.shape, made.dtype, len(made)) == (coo.shape, coo.dtype, coo.shape[0])
    assert (given_ != before).nnz == 0
    rows = np.random.default_rng(seed).integers(0, max(len(made), 1), 5 if len(made) else 0)
    np.testing.assert_array_equal(dense(made[rows]), coo.toarray()[rows])
    np.testing.assert_array_equal(dense(made[1:4]), coo.toarray()[1:4])
    assert by_rows("x", made) is made


def test_what_a_caller_holds_stays_as_it_is():
    unsorted = scipy.sparse.csr_array(([1.0, 2.0, 4.0], [2, 0, 2], [0, 3]), shape=(1, 3))
    made = by_rows("x", unsorted)
    np.testing.assert_array_equal(dense(made), [[2.0, 0.0, 5.0]])
    assert unsorted.indices.tolist() == [2, 0, 2]
    assert unsorted.data.tolist() == [1.0, 2.0, 4.0]


def test_matrices_and_arrays_of_scipy_are_sparse():
    plain = np.eye(3)
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix):
        assert is_sparse(kind(plain))
        np.testing.assert_array_equal(dense(by_rows("x", kind(plain))), plain)
    assert is_sparse(by_rows("x", scipy.sparse.eye_array(3)))
    assert not any(map(is_sparse, (plain, [1], None, {"nnz": 3})))


def damaged(change, form="csr"):
    made = scipy.sparse.csr_array(np.eye(3)).asformat(form)
    change(made)
    return made


@pytest.mark.parametrize(
    "matrix",
    [
        damaged(lambda m: m.indices.__setitem__(1, 3)),
        damaged(lambda m: m.indices.__setitem__(1, -1)),
        damaged(lambda m: m.indptr.__setitem__(1, 3)),
        damaged(lambda m: m.indptr.__setitem__(3, 9)),
        damaged(lambda m: m.indptr.__setitem__(0, 1)),
        damaged(lambda m: m.indices.__setitem__(1, 3), "csc"),
        damaged(lambda m: m.row.__setitem__(1, 3), "coo"),
        damaged(lambda m: m.col.__setitem__(1, -1), "coo"),
    ],
)
def test_entries_outside_of_the_shape_are_refused(matrix):
    with pytest.raises(DataError, match=r"x: expected .* within its shape \(3, 3\)"):
        by_rows("x", matrix)


@pytest.mark.parametrize(
    "matrix", [scipy.sparse.csr_array((2, 3), dtype=complex), scipy.sparse.coo_array(np.ones(4))]
)
def test_what_is_no_table_of_numbers_is_refused(matrix):
    with pytest.raises(DataError, match="x: expected a sparse matrix of numbers"):
        by_rows("x", matrix)


def test_its_size_is_told():
    made = CSRMatrix(np.array([0, 1]), np.array([2], np.int32), np.ones(1, np.float32), 4)
    assert repr(made) == "CSRMatrix((1, 4), 1 entries of float32)"
    assert made.nbytes == 16 + 4 + 4
