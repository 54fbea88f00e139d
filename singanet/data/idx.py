"""IDX files, the format of MNIST: big-endian arrays behind a short header."""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from singanet.base.budget import FLOOR, TIMES, checked_shape
from singanet.base.kinds import kind_of_start
from singanet.data.magic import open_data_file
from singanet.errors import DataError
from singanet.types import Array

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIECE = 1 << 20


def read_idx(path: str | Path, max_bytes: int | None = None) -> Array:
    """The array in an IDX file, packed with gzip or not.

    ``max_bytes`` bounds the size that the header may claim: 1 GiB, and of a packed file eight times
    its size and 48 MB, unless told otherwise. Errors: `DataError` naming the
    file and the byte at which it is not what it should be.
    """
    where = f"IDX file {str(path)!r}"
    with open_data_file(path) as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if not packed:
            return _read(stream, where, 1 << 30 if max_bytes is None else max_bytes)
        if max_bytes is None:
            max_bytes = 3 * FLOOR + TIMES * os.fstat(stream.fileno()).st_size
        try:
            with io.BufferedReader(gzip.GzipFile(fileobj=stream)) as unpacked:
                return _read(unpacked, where, max_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                where,
                expected="whole gzip data",
                received=f"broken data ({type(error).__name__}: {error})",
                advice="get the file again",
            ) from error


def _read(stream: IO[bytes] | io.BufferedReader, where: str, max_bytes: int) -> Array:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES or start[3] == 0:
        raise _refused(
            where, "two zero bytes, a type and a number of axes", kind_of_start(start).name, 0
        )
    axes = stream.read(4 * start[3])
    if len(axes) < 4 * start[3]:
        raise _refused(where, f"{start[3]} sizes of axes", "the end of the file", 4 + len(axes))
    dtype = np.dtype(_TYPES[start[2]])
    shape = checked_shape(
        np.frombuffer(axes, ">u4").tolist(),
        dtype.itemsize,
        max_bytes,
        lambda expected, received: _refused(where, expected, received, 4, "pass max_bytes=..."),
    )
    count = math.prod(shape) * dtype.itemsize
    # In pieces, so that memory grows with what is there and not with what is claimed.
    values = bytearray()
    while len(values) < count:
        piece = stream.read(min(_PIECE, count - len(values)))
        if not piece:
            end = 4 + len(axes) + len(values)
            received = f"the end of the file, {count - len(values)} bytes short"
            raise _refused(where, f"{count} bytes for sizes {shape}", received, end)
        values += piece
    if stream.read(1):
        raise _refused(where, f"the end, after sizes {shape}", "more", 4 + len(axes) + count)
    array = np.frombuffer(values, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _refused(where: str, expected: str, received: str, byte: int, trusted: str = "") -> DataError:
    return DataError(
        f"{where}, byte {byte}",
        expected=expected,
        received=received,
        advice="get the file again" + (f", or, if you know it, {trusted}" if trusted else ""),
    )
