"""Texts of variable length in attributes, read without libhdf5.

It gives memory for whatever length a file claims, and goes round for ever in a heap that claims
2⁶⁴ - 16 bytes. The layout: https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html, section III.E.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

from singanet.checkpoint.hdf5.header import attribute_bytes

_MAGIC = b"GCOL\1"
_HEADER = 16


class Texts:
    """Reads lists of texts from ``stream``, the ``size`` bytes of the open ``file``."""

    def __init__(self, file: Any, stream: BinaryIO, size: int) -> None:
        self._file, self._stream, self._size = file, stream, size
        # Many texts may name the same bytes: in all, no more than the file has.
        self._left = size
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}

    def read(self, item: Any, key: str, count: int) -> list[str]:
        """The ``count`` texts in the attribute ``key`` of ``item``. Raises ValueError."""
        import h5py

        if self._file.id.get_create_plist().get_sizes() != (8, 8):
            raise ValueError("addresses of another width than 8 bytes")
        address = h5py.h5o.get_info(item.id).addr
        base = self._file.userblock_size
        data = attribute_bytes(self._stream, base, address, key.encode())
        if len(data) < 16 * count:
            raise ValueError(f"{count} texts in {len(data)} bytes")
        places = struct.iter_unpack("<LQL", data[: 16 * count])
        return [self._text(length, base + heap, index) for length, heap, index in places]

    def _text(self, length: int, heap: int, index: int) -> str:
        if not length:
            return ""
        if heap not in self._heaps:
            self._heaps[heap] = self._objects(heap)
        offset, size = self._heaps[heap].get(index, (0, 0))
        if length > min(size, self._left):
            raise ValueError(f"a text of {length} bytes where {min(size, self._left)} are")
        self._left -= length
        self._stream.seek(offset)
        return self._stream.read(length).split(b"\0")[0].decode("utf-8", "replace")

    def _objects(self, heap: int) -> dict[int, tuple[int, int]]:
        """Offset and size of each object of the heap at ``heap``, by number."""
        start = self._piece(heap, _HEADER)
        whole = int.from_bytes(start[8:], "little")
        if not start.startswith(_MAGIC) or not _HEADER <= whole <= self._size - heap:
            raise ValueError("no whole heap of texts where one is said to be")
        found, at, end = {}, heap + _HEADER, heap + whole
        while end - at >= _HEADER:
            index, _, _, size = struct.unpack("<HHLQ", self._piece(at, _HEADER))
            if index == 0:  # the free space, which is last
                break
            if size > end - at - _HEADER:
                raise ValueError("a text that is larger than its heap")
            found[index] = at + _HEADER, size
            at += _HEADER + (size + 7) // 8 * 8
        return found

    def _piece(self, offset: int, size: int) -> bytes:
        if offset > self._size - size:
            raise ValueError("a heap of texts behind the end of the file")
        self._stream.seek(offset)
        return self._stream.read(size)
