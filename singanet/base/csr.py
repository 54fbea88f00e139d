"""Sparse matrices by rows, as nets are fed with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from singanet.errors import DataError
from singanet.types import Array, Shape


class CSRMatrix:
    """A matrix by its entries: row *i* has those from ``indptr[i]`` to ``indptr[i + 1]``.

    ``indices`` are their columns and ``values`` what stands there; where a column comes twice in a
    row, the values add up.
    """

    __slots__ = ("indices", "indptr", "shape", "values")

    ndim = 2

    def __init__(self, indptr: Array, indices: Array, values: Array, columns: int) -> None:
        self.indptr, self.indices, self.values = indptr, indices, values
        self.shape: Shape = (len(indptr) - 1, columns)

    def __repr__(self) -> str:
        return f"CSRMatrix({self.shape}, {len(self.values)} entries of {self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """The memory of the three arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.values.nbytes)

    def __getitem__(self, rows: Any) -> CSRMatrix:
        """The matrix of these ``rows``: a slice, or an array of their numbers."""
        chosen = np.arange(len(self))[rows]
        counts = np.diff(self.indptr)[chosen]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        # Of each entry the place in its row, behind where that row begins.
        places = np.arange(indptr[-1]) + np.repeat(self.indptr[chosen] - indptr[:-1], counts)
        return CSRMatrix(indptr, self.indices[places], self.values[places], self.shape[1])

    def entry_rows(self, xp: Any = np) -> Array:
        """The row of each entry, rising; ``xp`` is the module of its arrays."""
        rows: Array = xp.searchsorted(self.indptr, xp.arange(len(self.values)), side="right") - 1
        return rows

    def mapped(self, put: Callable[[Array], Array], dtype: np.dtype[Any]) -> CSRMatrix:
        """The matrix with its arrays as ``put`` gives them, and the values of type ``dtype``."""
        values = put(self.values)
        return CSRMatrix(
            put(self.indptr),
            put(self.indices),
            values if values.dtype == dtype else values.astype(dtype),
            self.shape[1],
        )


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
