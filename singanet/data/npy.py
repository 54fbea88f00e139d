"""The header of a ``.npy`` array, read without evaluating anything."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from singanet.base.budget import checked_shape
from singanet.errors import DataError

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[<>|=]?[a-zA-Z]\d*)',"
    rb"\s*'fortran_order':\s*(?P<fortran>True|False),"
    rb"\s*'shape':\s*\((?P<shape>(?:\d{1,18},\s*)*(?:\d{1,18})?)\s*\),?\s*\}\s*"
)


@dataclass(frozen=True)
class NpyHeader:
    """The claims of an array's header: its type, shape and order of elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size_in_file: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array, exact however large the claim is."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(stream: IO[bytes], where: str) -> NpyHeader:
    """The header at the start of ``stream``, which is left at the first element.

    Errors: `DataError` for anything but a plain array of booleans, integers or floats. Object
    arrays are refused, since they are pickles and reading one can run a program.
    """
    start = stream.read(8)
    if len(start) < 8 or not start.startswith(_MAGIC):
        raise _refused(where, "an array that starts with '\\x93NUMPY'", f"{start!r}")
    count = {1: 2, 2: 4}.get(start[6])
    if count is None:
        raise _refused(where, "version 1 or 2 of the .npy format", f"version {start[6]}")
    length = int.from_bytes(stream.read(count), "little")
    text = stream.read(min(length, _LONGEST_HEADER))
    found = _HEADER.fullmatch(text)
    if len(text) != length or found is None:
        if b"'|O" in text or b"'O" in text:
            raise _refused(where, "an array of numbers", "an array of Python objects (a pickle)")
        raise _refused(where, "a header with a plain type and a shape", f"{text[:60]!r}")
    dtype = _plain_dtype(found["descr"].decode("ascii"), where)
    parts = [int(part) for part in found["shape"].split(b",") if part.strip()]
    shape = checked_shape(
        parts, dtype.itemsize, 1 << 62, lambda wanted, received: _refused(where, wanted, received)
    )
    return NpyHeader(dtype, shape, found["fortran"] == b"True", 8 + count + length)


def _plain_dtype(descr: str, where: str) -> np.dtype[Any]:
    kind = descr.lstrip("<>|=")[0]
    if kind == "O":
        raise _refused(where, "an array of numbers", "an array of Python objects (a pickle)")
    try:
        dtype = np.dtype(descr)
    except TypeError:
        raise _refused(where, "an array of numbers", f"the type {descr!r}") from None
    if dtype.kind not in "biuf" or dtype.itemsize == 0:
        raise _refused(where, "booleans, integers or floats", f"the type {descr!r}")
    return dtype


def _refused(where: str, expected: str, received: str) -> DataError:
    return DataError(
        where,
        expected=expected,
        received=received,
        advice="write it again with numpy.savez(path, x_train=..., y_train=..., ...)",
    )
