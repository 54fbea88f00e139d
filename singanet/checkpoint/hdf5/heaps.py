"""Heaps of texts of variable length, looked through before libhdf5 may read from them.

libhdf5 2 takes a heap's sizes as they come and goes round for ever where one is 2⁶⁴ - 16.
The layout: https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html, section III.E.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, BinaryIO

_MAGIC = b"GCOL\1"
_HEADER = 16
_PIECE = 1 << 20


def check_heaps(file: Any, datasets: Iterable[Any], stream: BinaryIO, size: int) -> None:
    """Check every heap in ``stream``, the bytes of ``file``, outside the data of ``datasets``.

    Raises ValueError for one whose sizes do not add up.
    """
    if file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("addresses of another width than 8 bytes")
    taken = sorted(
        (offset, offset + dataset.id.get_storage_size())
        for dataset in datasets
        if (offset := dataset.id.get_offset()) is not None
    )
    start = 0
    for begin, end in [*taken, (size, size)]:
        if begin > start:
            _check_between(stream, start, begin, size)
        start = max(start, end)


def _check_between(stream: BinaryIO, start: int, end: int, size: int) -> None:
    while start < end:
        stream.seek(start)
        piece = stream.read(min(_PIECE, end - start) + len(_MAGIC) - 1)
        at = piece.find(_MAGIC)
        while at >= 0:
            _check_heap(stream, start + at, size)
            at = piece.find(_MAGIC, at + 1)
        start += _PIECE


def _check_heap(stream: BinaryIO, at: int, size: int) -> None:
    stream.seek(at + 8)
    (whole,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
    if not _HEADER <= whole <= size - at:
        raise ValueError("a heap of texts that is larger than the file")
    left = whole - _HEADER
    while left >= _HEADER:
        index, _, _, length = struct.unpack("<HHLQ", stream.read(_HEADER))
        need = length if index == 0 else _HEADER + (length + 7) // 8 * 8
        if not _HEADER <= need <= left:
            raise ValueError("a text that is larger than its heap")
        left -= need
        stream.seek(need - _HEADER, 1)
