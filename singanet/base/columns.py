"""Columns of ids and sparse rows (CSR)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from singanet.errors import DataError, UnknownNameError, did_you_mean, one_of
from singanet.types import Array, CSRMatrix

_TABLE = "fit a singanet.data.Table on the frame, which makes numbers of it"


class Columns(dict[str, Any]):
    """The columns of a table by name, arrays or lists of one length: a frame without library."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.values()), ()))

    def take(self, rows: Any) -> Columns:
        """Return the rows ``rows`` of each column: an array of indices, a mask or a slice."""
        return Columns({name: _array(column)[rows] for name, column in self.items()})


def is_frame(x: Any) -> TypeGuard[Any]:
    """Return whether ``x`` is a table with named columns: of pandas, polars, pyarrow and the like.

    It has ``__dataframe__``, or ``__arrow_c_stream__`` and names of columns. Series have neither.
    """
    kind = type(x)
    if kind is np.ndarray:
        return False
    return (
        kind is Columns
        or hasattr(kind, "__dataframe__")
        or (
            hasattr(kind, "__arrow_c_stream__")
            and (hasattr(kind, "columns") or hasattr(kind, "column_names"))
        )
    )


def has_frame(x: Any) -> bool:
    """Return whether ``x`` is a frame, or a dict or list that contains one."""
    if type(x) is dict:
        # A fast path, since every batch of a net with several inputs comes here.
        for part in x.values():
            if type(part) is not np.ndarray:
                break
        else:
            return False
    if isinstance(x, Mapping) and type(x) is not Columns:
        return any(is_frame(part) for part in x.values())
    return any(map(is_frame, x)) if isinstance(x, (list, tuple)) else is_frame(x)


def columns_of(where: str, frame: Any, only: Iterable[str] | None = None) -> Columns:
    """Return the columns of a frame, or of a dict of columns, with values of any type.

    With ``only`` return just these, in their order. Errors: columns with one name, of unequal
    length, of other shapes; a missing column of ``only``.
    """
    labels = _labels(where, frame)
    if only is not None:
        labels = {name: labels[name] for name in _present(where, only, labels)}
    found = Columns()
    for name, label in labels.items():
        column = frame[label]
        array = column.to_numpy() if hasattr(column, "to_numpy") else _array(column)
        if array.ndim != 1:
            raise DataError(
                f"{where}, column {name!r}",
                expected="a value a row",
                received=f"an array of shape {array.shape}",
                advice="feed arrays of other shapes as arrays, by the names of inputs",
            )
        found[name] = array
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            where,
            expected="the same number of rows in all columns",
            received=", ".join(f"{name}: {length}" for name, length in lengths.items())[:160],
            advice="take all columns from one table",
        )
    return found


def names_of(where: str, frame: Any) -> tuple[str, ...]:
    """Return the names of the columns. Errors: two with one name, or none."""
    return tuple(_labels(where, frame))


def numbers(where: str, name: str, column: Array) -> Array:
    """Return a numeric column. Errors: text, other objects and dates; missing values."""
    at = f"{where}, column {name!r}"
    if column.dtype.kind == "O" and all(isinstance(v, (bool, np.bool_)) for v in column):
        column = column.astype(bool)
    if column.dtype.kind not in "fiub":
        raise DataError(at, expected="numbers", received=_kind(column), advice=_TABLE)
    if column.dtype.kind == "f" and np.isnan(column).any():
        missing = int(np.isnan(column).sum())
        raise DataError(
            at,
            expected="a number in each row",
            received=f"{missing} of {len(column)} rows without a number",
            advice=f"{_TABLE} and fills missing values, or remove the rows",
        )
    return column


def matrix(where: str, columns: Columns) -> Array:
    """Return the columns as a matrix (rows, columns). Errors: as for `numbers`."""
    return np.stack([numbers(where, name, each) for name, each in columns.items()], axis=1)


def expect_columns(where: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse columns other than ``known``, in any order."""
    missing = [name for name in known if name not in given]
    extra = [name for name in given if name not in known]
    if missing or extra:
        parts = [f"none called {one_of(missing, 6)}"] if missing else []
        parts += [f"{one_of(extra, 6)} besides"] if extra else []
        raise UnknownNameError(
            where,
            expected=f"the columns of training: {one_of(known, 12)}",
            received=", ".join(parts),
            advice="choose them with frame[names]; to train on others, net.columns.clear() first",
        )


def _labels(where: str, frame: Any) -> dict[str, Any]:
    """Return the frame's labels of columns, by their names as text."""
    if isinstance(frame, Mapping):
        labels = list(frame)
    else:
        # In pyarrow, "columns" are the columns themselves.
        given = getattr(frame, "column_names", None)
        labels = list(getattr(frame, "columns", ()) if given is None else given)
    found = {str(label): label for label in labels}
    if not found or len(found) < len(labels):
        twice = [name for name in found if [str(label) for label in labels].count(name) > 1]
        raise DataError(
            where,
            expected="columns with distinct names",
            received=f"several called {one_of(twice, 6)}" if twice else "no column",
            advice="rename the columns" if twice else "check how the table was read",
        )
    return found


def _present(where: str, names: Iterable[str], labels: Mapping[str, Any]) -> list[str]:
    names = list(names)
    missing = [name for name in names if name not in labels]
    if missing:
        raise UnknownNameError(
            where,
            expected=f"the columns {one_of(names, 12)}",
            received=f"none called {one_of(missing, 6)}",
            advice=did_you_mean(missing[0], labels, "add or rename the column"),
        )
    return names


def _array(column: Any) -> Array:
    """Return a list as an array that preserves the types of its values."""
    if isinstance(column, (list, tuple)) and not all(
        isinstance(value, (int, float, np.number)) for value in column
    ):
        made = np.empty(len(column), object)
        made[:] = column
        return made
    return np.asarray(column)


def _kind(column: Array) -> str:
    if column.dtype.kind != "O":
        return f"values of type {column.dtype}"
    kinds = list(dict.fromkeys(type(value).__name__ for value in column))
    return f"values of type {one_of(kinds, 4)}"


def is_sparse(x: Any) -> TypeGuard[Any]:
    """Return whether ``x`` is a sparse matrix or array, SciPy's or a `CSRMatrix`."""
    return type(x) is CSRMatrix or (hasattr(x, "tocsr") and hasattr(x, "nnz"))


def by_rows(where: str, x: Any) -> CSRMatrix:
    """Return SciPy's sparse ``x``, in any format, as a `CSRMatrix`; ``x`` is not changed.

    Errors: `DataError` if it does not have two axes, its values are not numbers, or its indices are
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
    """Return whether the arrays of ``x`` are valid; SciPy's compiled code does not check bounds."""
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
