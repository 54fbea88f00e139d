"""SciPy's sparse matrices, as nets are fed with them."""

from __future__ import annotations

from typing import Any, TypeGuard

from singanet.errors import DataError
from singanet.types import Array, CSRMatrix


def is_sparse(x: Any) -> TypeGuard[Any]:
    """Whether ``x`` is a sparse matrix or array, SciPy's or a `CSRMatrix`."""
    return type(x) is CSRMatrix or (hasattr(x, "tocsr") and hasattr(x, "nnz"))


def by_rows(where: str, x: Any) -> CSRMatrix:
    """The sparse ``x`` of SciPy, in whichever format, as a `CSRMatrix`; it stays as it is.

    Errors: `DataError` for what has not two axes, for values that are no numbers, and for indices
    outside of its shape.
    """
    if type(x) is CSRMatrix:
        return x
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="a sparse matrix of numbers, a row a sample",
            received=f"{type(x).__name__} of type {x.dtype} and shape {tuple(x.shape)}",
            advice="convert it: scipy.sparse.csr_array(x, dtype='float32')",
        )
    if not _is_whole(x):
        raise DataError(
            where,
            expected=f"a sparse matrix whose entries are within its shape {tuple(x.shape)}",
            received=f"{type(x).__name__} with others",
            advice="call its check_format() to see where it is damaged",
        )
    made = x.tocsr()
    if not made.has_canonical_format:
        made = made.copy() if made is x else made
        made.sum_duplicates()
    count = int(made.indptr[-1])
    return CSRMatrix(made.indptr, made.indices[:count], made.data[:count], int(x.shape[1]))


def _is_whole(x: Any) -> bool:
    """Whether SciPy's compiled code, which does not look, stays within the arrays of ``x``."""
    if x.format == "coo":
        return _within(x.row, x.shape[0]) and _within(x.col, x.shape[1])
    if x.format not in ("csr", "csc"):
        return True
    major, minor = x.shape if x.format == "csr" else x.shape[::-1]
    indptr, indices = x.indptr, x.indices
    return bool(
        len(indptr) == major + 1
        and indptr[0] == 0
        and (indptr[1:] >= indptr[:-1]).all()
        and indptr[-1] <= min(len(indices), len(x.data))
        and _within(indices[: indptr[-1]], minor)
    )


def _within(indices: Array, size: int) -> bool:
    return not len(indices) or (int(indices.min()) >= 0 and int(indices.max()) < size)
