"""Names for the types of plain arrays and shapes, used in all rooms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from singanet.errors import ArgumentError

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[Any]]
"""A NumPy array, or a CuPy array, which offers the same interface."""

Arrays: TypeAlias = Array | Sequence[Array]
"""The input or output of a layer: one array, or a sequence for several."""

Shape: TypeAlias = tuple[int, ...]
"""A shape; for a layer's inputs and outputs a *sample* shape, without the batch axis."""

GivenShape: TypeAlias = tuple[int | None, ...]
"""A sample shape from a user: None is an axis of any extent."""

GivenShapes: TypeAlias = GivenShape | Sequence[GivenShape]
"""One given sample shape, or several."""

Shapes: TypeAlias = Shape | list[Shape]
"""One sample shape, or a list for a layer with several inputs or outputs."""

Work: TypeAlias = Callable[[], object]
"""A function without arguments, for one unit of work."""

Parts: TypeAlias = Sequence[Sequence[Work]]
"""Sequences of work; different sequences may run in parallel."""

SweepSteps: TypeAlias = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Steps of element-wise arithmetic: NumPy's function, the places of its result and operands."""


class RowSparse(NamedTuple):
    """The gradient of a table whose other rows are zero: an embedding's.

    ``indices`` (K,) are distinct row numbers in ascending order; ``rows`` (K, ...) are their
    gradients, summed over all uses.
    """

    indices: Array
    rows: Array

    @property
    def nbytes(self) -> int:
        """The bytes of both arrays."""
        return int(self.indices.nbytes + self.rows.nbytes)


class StandIn(np.ndarray[Any, Any]):
    """A placeholder with the shape and type of an array that is elsewhere, and no memory.

    It cannot be written, pickled or copied, since its elements are not the values.
    """

    def refused(self, where: str) -> ArgumentError:
        """Make the error for code that would use the elements as values."""
        return ArgumentError(
            where,
            expected="an array that has the values",
            received="the stand-in of a parameter whose values are in a table or on other ranks",
            advice="write param.peek() instead of param.value, or call net.save",
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to pickle. Errors: `ArgumentError`."""
        raise self.refused("pickle")

    def __deepcopy__(self, memo: Any) -> Any:
        """Refuse to copy. Errors: `ArgumentError`."""
        raise self.refused("copy.deepcopy")


class CSRMatrix:
    """A sparse matrix: row *i* has the entries from ``indptr[i]`` to ``indptr[i + 1]``.

    ``indices`` are their columns and ``values`` their values; repeated columns of a row add up.
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
        """The bytes of the three arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.values.nbytes)

    def __getitem__(self, rows: Any) -> CSRMatrix:
        """Return the matrix of these ``rows``: a slice, or an array of indices."""
        like: Any = self.indptr
        # The counts are computed on the host.
        starts: Array = like if type(like) is np.ndarray else like.get()
        chosen = np.arange(len(self))[rows]
        counts = np.diff(starts)[chosen]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        # The start of each entry's row, plus its index in the row.
        places = np.arange(indptr[-1]) + np.repeat(starts[chosen] - indptr[:-1], counts)
        if starts is not like:
            indptr, places = (np.asarray(each, like=like) for each in (indptr, places))
        return CSRMatrix(indptr, self.indices[places], self.values[places], self.shape[1])

    def entry_rows(self, xp: Any = np) -> Array:
        """Return the row of each entry, ascending; ``xp`` is the module of its arrays."""
        rows: Array = xp.searchsorted(self.indptr, xp.arange(len(self.values)), side="right") - 1
        return rows

    def mapped(self, put: Callable[[Array], Array], dtype: np.dtype[Any]) -> CSRMatrix:
        """Return the matrix with ``put`` applied to its arrays, and values of type ``dtype``."""
        values = put(self.values)
        return CSRMatrix(
            put(self.indptr),
            put(self.indices),
            values if values.dtype == dtype else values.astype(dtype),
            self.shape[1],
        )


Gradient: TypeAlias = Array | RowSparse
"""The gradient of a parameter from backward: an array of its shape, or some rows."""


InputKind: TypeAlias = Literal["floats", "integers", "any"]


@dataclass(frozen=True)
class Traits:
    """Traits of a layer, which its class or its arguments set.

    ``input_kinds`` are the types of the inputs, in order, if not all are floats: see
    `Layer._input_kind`. ``gives_integers`` means that outputs are integers or booleans for any
    input; ``moves_only`` that they are the input's elements, rearranged: integers for later layers
    pass through. With ``any_extent`` a sample axis may be None, of another extent at each call;
    shapes show it as -1.

    ``masks`` is the effect on a mask of the input's steps: "keeps" if outputs have the same mask,
    "ends" if the layer is its last reader; a layer with neither refuses a mask. The output of a
    layer that ``begins_mask`` is the mask of its input; the following layers read the input, with
    this mask.

    With ``stops_gradient`` no gradient reaches the inputs: layers that only this layer reads store
    nothing for backward. ``sparse`` is an input for sparse matrices; the `forward` of a layer that
    ``takes_sparse`` gets a `CSRMatrix`. A layer that ``looks_up`` requests rows of a parameter that
    is served, and never reads the whole array. A training batch has at least ``fewest_samples``.
    ``samples`` is "same" if outputs have as many samples as each input, "stacked" if they have the
    concatenated samples of all inputs, and "own" for any other number. A layer that
    ``owns_gradients`` makes gradients of its parameters as new arrays, which backward may add to in
    place. With ``gives_steps`` outputs of two axes are (steps, features).
    """

    input_kinds: tuple[InputKind, ...] = ()
    gives_integers: bool = False
    moves_only: bool = False
    any_extent: bool = False
    masks: Literal["", "keeps", "ends"] = ""
    begins_mask: bool = False
    stops_gradient: bool = False
    sparse: bool = False
    takes_sparse: bool = False
    looks_up: bool = False
    fewest_samples: int = 1
    samples: Literal["same", "stacked", "own"] = "same"
    owns_gradients: bool = False
    gives_steps: bool = False
