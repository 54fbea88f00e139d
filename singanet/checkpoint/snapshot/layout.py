"""From storage order to the shape that a record claims: transposed and strided tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.errors import FileFormatError
from singanet.types import Array, Shape


def in_shape(flat: Array, shape: Shape, marks: Sequence[int], where: str) -> Array:
    """``flat``, in storage order, as a C-contiguous array of ``shape``.

    ``marks`` is field 3 of the record: nothing, one flag 0 or 1 ("transposed", up to 1.1.1), or
    as many strides as ``shape`` has axes (from 1.2.0). Errors: `FileFormatError` for other marks.
    """
    if len(marks) == len(shape) > 1:
        return _strided(flat, shape, marks, where)
    if not marks or len(shape) < 2:
        # One axis reads the same in both orders.
        return flat.reshape(shape)
    if len(marks) == 1 and marks[0] == 0:
        return flat.reshape(shape)
    if len(marks) == 1 and marks[0] == 1 and len(shape) == 2:
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    raise _refused(shape, marks, where)


def _strided(flat: Array, shape: Shape, strides: Sequence[int], where: str) -> Array:
    if min(strides) < 0:
        raise _refused(shape, strides, where)
    if not flat.size:
        return flat.reshape(shape)
    furthest = sum((axis - 1) * stride for axis, stride in zip(shape, strides, strict=True))
    if furthest >= flat.size:
        raise _refused(shape, strides, where)
    steps = tuple(stride * flat.itemsize for stride in strides)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, steps))


def _refused(shape: Shape, marks: Sequence[int], where: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=f"a transposed flag, or {len(shape)} strides inside the data of {tuple(shape)}",
        received=str(list(marks)[:33]),
        advice="the file is damaged: copy it again, or use an earlier checkpoint",
    )
