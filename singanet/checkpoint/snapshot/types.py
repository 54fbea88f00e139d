"""Which NumPy type a record's data have, and in which field of the record they stand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# DataType of core.proto.
FLOAT32, FLOAT16, INT, CHAR, DOUBLE, UCHAR = range(6)

BYTES_FIELD, INT_FIELD = 7, 6


class ElementType(NamedTuple):
    """``width`` is the size of one number in the file, 0 for variable-length integers."""

    dtype: np.dtype[Any]
    field: int
    width: int
    wire: int
    """How protobuf writes one number that is not packed."""


KINDS: dict[int, ElementType] = {
    FLOAT32: ElementType(np.dtype("<f4"), 4, 4, 5),
    DOUBLE: ElementType(np.dtype("<f8"), 5, 8, 1),
    INT: ElementType(np.dtype("<i4"), INT_FIELD, 0, 0),
    # SINGA has these types but never writes them; bytes_data is the field it left for them.
    FLOAT16: ElementType(np.dtype("<f2"), BYTES_FIELD, 2, 2),
    CHAR: ElementType(np.dtype("i1"), BYTES_FIELD, 1, 2),
    UCHAR: ElementType(np.dtype("u1"), BYTES_FIELD, 1, 2),
}

DATA_TYPES = {kind.dtype: number for number, kind in KINDS.items()}
DATA_FIELDS = {kind.field for kind in KINDS.values()}
