"""Bytes of arrays to and from files, checked on the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from singanet.base.budget import checked_shape
from singanet.checkpoint.checksum import PIECE, Beside, Checksum
from singanet.checkpoint.entry import Entry
from singanet.errors import ChecksumError, FileFormatError
from singanet.types import Array, Shape


def bytes_of(array: Array) -> memoryview:
    """The memory of a C-contiguous ``array`` as bytes, without a copy."""
    # memoryview itself cannot cast an empty array.
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def write_bytes(stream: BinaryIO, data: memoryview, beside: Beside) -> bytes:
    """Write all of ``data``; return its checksum, summed while it was written."""
    return write_pieces(stream, [data], beside)


def write_pieces(stream: BinaryIO, pieces: Iterable[memoryview], beside: Beside) -> bytes:
    """`write_bytes` of all ``pieces`` together, each let go before the next one is asked for."""
    checksum = Checksum()
    for data in pieces:
        beside.update(checksum, data)
        left = data
        while left:
            # An unbuffered write may take less than it is given.
            left = left[stream.write(left) :]
        beside.wait()
        del data, left
    return checksum.digest()


def read_bytes(
    stream: BinaryIO,
    data: memoryview,
    beside: Beside,
    where: str,
    before: Checksum | None = None,
) -> bytes:
    """Fill ``data`` from ``stream``; return its checksum, that of what came ``before`` included.

    Errors: `FileFormatError` when the file ends before.
    """
    checksum = before or Checksum()
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        read_exactly(stream, piece, where)
        beside.update(checksum, piece)
    beside.wait()
    return checksum.digest()


def read_exactly(stream: BinaryIO, data: memoryview, where: str) -> None:
    """Fill ``data`` from ``stream``. Errors: `FileFormatError` when the file ends before."""
    left = data
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise truncated(where, f"{len(data)} bytes", f"{len(data) - len(left)} bytes")
        left = left[count:]


def as_bools(array: Array) -> Array:
    """``array`` itself; in one of booleans, every byte that is not 0 becomes True."""
    if array.dtype == np.bool_:
        np.not_equal(array.view(np.uint8), 0, out=array)
    return array


def truncated(where: str, expected: str, received: str) -> FileFormatError:
    """The error for a file that ends too early."""
    return FileFormatError(
        where,
        expected=expected,
        received=f"{received}, then the end of the file",
        advice="the file is truncated: copy it again, or use an earlier checkpoint",
    )


def check_shape(shape: Any, itemsize: int, limit: int, where: str) -> Shape:
    """``shape`` as a tuple, if an array of it needs no more than ``limit`` bytes.

    Errors: `FileFormatError` for negative or too many axes, and for a claim above ``limit``.
    """

    def refuse(expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            where,
            expected=expected,
            received=received,
            advice="the file is damaged or forged: get it again",
        )

    return checked_shape(shape, itemsize, limit, refuse)


def check_digest(entry: Entry, digest: bytes, where: str) -> None:
    """Errors: `ChecksumError` naming the array, unless ``digest`` is the one in the file."""
    if entry.checksum and digest.hex() != entry.checksum:
        raise ChecksumError(
            f"{where}, array {entry.name!r}",
            expected=f"the checksum {entry.checksum}, as it was written",
            received=digest.hex(),
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        )
