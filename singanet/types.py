"""Names for the plain arrays and shapes that travel between the rooms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array, or a CuPy array, which offers the same interface."""

Arrays: TypeAlias = Array | Sequence[Array]
"""What a layer takes or returns: one array, or a sequence for several inputs or outputs."""

Shape: TypeAlias = tuple[int, ...]
"""A shape; for a layer's inputs and outputs a *sample* shape, without the batch axis."""

Shapes: TypeAlias = Shape | list[Shape]
"""One sample shape, or a list for a layer with several inputs or outputs."""


class RowSparse(NamedTuple):
    """The gradient of a table whose other rows are zero: an embedding's.

    ``indices`` (K,) are row numbers, each once and rising; ``rows`` (K, ...) are their gradients,
    summed over all uses.
    """

    indices: Array
    rows: Array

    @property
    def nbytes(self) -> int:
        """The memory of both arrays."""
        return int(self.indices.nbytes + self.rows.nbytes)


Gradient: TypeAlias = Array | RowSparse
"""What backward returns for a parameter: an array of its shape, or some rows of it."""
