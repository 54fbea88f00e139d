"""The bytes of an attribute, found by walking its object's header.

The layout: https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html, sections IV.A.1 and IV.A.2.m.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_ATTRIBUTE, _CONTINUATION = 0x0C, 0x10
_LARGEST = 1 << 26


def attribute_bytes(stream: BinaryIO, base: int, address: int, name: bytes) -> bytes:
    """The data of the attribute ``name`` of the object whose header is at ``address``.

    ``base`` is where the file's addresses start. Raises ValueError where the header does not hold
    it, among its own messages.
    """
    for message in _messages(stream, base, address):
        found, data = _split(message)
        if found == name:
            return data
    raise ValueError(f"the attribute {name.decode()!r} is not in its object's header")


def _messages(stream: BinaryIO, base: int, address: int) -> Iterator[bytes]:
    """Each attribute message of a header, of either version, block after block."""
    start = _at(stream, base + address, 16)
    if start.startswith(b"OHDR\2"):
        flags = start[5]
        skipped = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(_at(stream, base + address + skipped, width), "little")
        blocks = [(base + address + skipped + width, size)]
        head, order = 4, 2 if flags & 0x04 else 0
    elif start[0] == 1:
        blocks = [(base + address + 16, int.from_bytes(start[8:12], "little"))]
        head, order = 8, 0
    else:
        raise ValueError("an object without a header")
    seen = 0
    for place, size in blocks:  # grows while it is walked
        seen += size
        if seen > _LARGEST:
            raise ValueError("a header without end")
        block, at = _at(stream, place, size), 0
        while at + head + order <= size:
            kind = block[at] if head == 4 else int.from_bytes(block[at : at + 2], "little")
            length_at = at + (1 if head == 4 else 2)
            length = int.from_bytes(block[length_at : length_at + 2], "little")
            at += head + order
            body = block[at : at + length]
            at += length
            if kind == _CONTINUATION:
                target, length = struct.unpack("<QQ", body[:16])
                # A later block of version 2 has a signature before it and a checksum behind it.
                blocks.append(
                    (base + target, length) if head == 8 else (base + target + 4, length - 8)
                )
            elif kind == _ATTRIBUTE:
                yield body


def _split(message: bytes) -> tuple[bytes, bytes]:
    """The name and the data of an attribute message."""
    version, _, *sizes = struct.unpack("<BBHHH", message[:8])
    start = 9 if version == 3 else 8
    if version == 1:
        name, kind, space = ((size + 7) // 8 * 8 for size in sizes)
    else:
        name, kind, space = sizes
    return message[start : start + name].split(b"\0")[0], message[start + name + kind + space :]


def _at(stream: BinaryIO, place: int, size: int) -> bytes:
    if not 0 <= size <= _LARGEST:
        raise ValueError("a header that is larger than any")
    stream.seek(place)
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("a header behind the end of the file")
    return data
