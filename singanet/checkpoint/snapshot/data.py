"""The numbers of a record, read into an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from singanet.checkpoint.checksum import Beside, Checksum
from singanet.checkpoint.snapshot.record import DataRun, Record
from singanet.checkpoint.snapshot.varint import decode_all
from singanet.checkpoint.streaming import bytes_of, read_bytes
from singanet.errors import FileFormatError
from singanet.types import Array, Shape

_CHUNK = 1 << 17


def read_data(stream: BinaryIO, record: Record, beside: Beside, where: str) -> tuple[Array, bytes]:
    """The numbers in storage order, one axis, and the checksum of their bytes in the file."""
    kind = record.kind
    count = math.prod(record.head.shape)
    flat = np.empty(count, kind.dtype)
    checksum = b""
    filled = 0
    for segment in record.segments:
        if not kind.width:
            numbers, checksum = _integers(stream, segment, flat[filled:], where)
        elif segment.step:
            numbers = _unpacked(stream, segment, kind.width, flat[filled:])
        else:
            numbers = segment.size // kind.width
            stream.seek(segment.offset)
            piece = bytes_of(flat[filled : filled + numbers])
            checksum = read_bytes(stream, piece, beside, where)
        filled += numbers
    if filled != count:
        raise wrong_count(where, record.head.shape, count, filled)
    return flat, checksum or Checksum().digest()


def count_stored(record: Record) -> int | None:
    """How many numbers a record holds; None where only decoding them can tell."""
    width = record.kind.width
    return sum([segment.size // width for segment in record.segments]) if width else None


def wrong_count(where: str, shape: Shape, expected: int, received: int) -> FileFormatError:
    """The error for data that do not fill their shape."""
    return FileFormatError(
        where,
        expected=f"{expected} numbers for the shape {tuple(shape)}",
        received=str(received),
        advice="the file is damaged: copy it again, or use an earlier checkpoint",
    )


def _unpacked(stream: BinaryIO, segment: DataRun, width: int, out: Array) -> int:
    count = segment.size // width
    raw = out.view(np.uint8).reshape(-1, width)
    # From the first tag on, so that every number is preceded by one.
    stream.seek(segment.offset - (segment.step - width))
    for start in range(0, count, _CHUNK):
        rows = min(_CHUNK, count - start)
        block = np.frombuffer(stream.read(rows * segment.step), np.uint8)
        raw[start : start + rows] = block.reshape(rows, segment.step)[:, -width:]
    return count


def _integers(stream: BinaryIO, segment: DataRun, out: Array, where: str) -> tuple[int, bytes]:
    checksum = Checksum()
    stream.seek(segment.offset)
    left, rest, filled, seen = segment.size, b"", 0, 0
    while left:
        piece = stream.read(min(_CHUNK, left))
        if not piece:
            break
        left -= len(piece)
        checksum.update(piece)
        try:
            numbers, used = decode_all(rest + piece)
        except ValueError as error:
            raise _bad_number(where, str(error)) from None
        rest = (rest + piece)[used:]
        # Unpacked: every other number is a tag.
        chosen = numbers[1 - seen % 2 :: 2] if segment.step else numbers
        seen += len(numbers)
        if len(chosen) > len(out) - filled:
            raise wrong_count(where, (len(out),), len(out), filled + len(chosen))
        out[filled : filled + len(chosen)] = chosen
        filled += len(chosen)
    if rest:
        raise _bad_number(where, "a number without an end")
    return filled, checksum.digest()


def _bad_number(where: str, what: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected="protobuf's variable-length integers",
        received=what,
        advice="the file is damaged: copy it again, or use an earlier checkpoint",
    )


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
