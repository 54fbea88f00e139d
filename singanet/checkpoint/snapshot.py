"""SINGA's snapshots, read and written."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from singanet.base.arguments import MAX_NAME_BYTES, Budget
from singanet.base.files import replacing
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    MAX_ARRAYS,
    SIZE,
    Checksum,
    ChecksumThread,
    Entry,
    Source,
    bytes_of,
    check_digest,
    check_name,
    check_shape,
    check_version,
    duplicate,
    read_bytes,
    too_many,
    total_bytes,
    truncated,
    write_bytes,
)
from singanet.checkpoint.reader import StreamReader, find_records, record_keys, record_path
from singanet.checkpoint.snapshot_records import (
    DATA_TYPES,
    KINDS,
    DataRun,
    Record,
    decode_all,
    desc_text,
    encode,
    encode_all,
    encoded_size,
    parse_record,
    read_desc,
)
from singanet.errors import ArgumentError, FileFormatError, brief
from singanet.types import Array, Shape

_CHUNK = 1 << 17


def read_data(
    stream: BinaryIO, record: Record, hasher: ChecksumThread, where: str
) -> tuple[Array, bytes]:
    """Return the elements in storage order, one axis, and the checksum of their bytes."""
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
            checksum = read_bytes(stream, piece, hasher, where)
        filled += numbers
    if filled != count:
        raise wrong_count(where, record.head.shape, count, filled)
    return flat, checksum or Checksum().digest()


def count_stored(record: Record) -> int | None:
    """Return the number of elements of a record; None if only decoding can count them."""
    width = record.kind.width
    return sum([segment.size // width for segment in record.segments]) if width else None


def wrong_count(where: str, shape: Shape, expected: int, received: int) -> FileFormatError:
    """Return the error for data that do not fill their shape."""
    return FileFormatError(
        where,
        expected=f"{expected} numbers for the shape {tuple(shape)}",
        received=str(received),
        advice="the file is damaged: copy it again, or use an earlier checkpoint",
    )


def _unpacked(stream: BinaryIO, segment: DataRun, width: int, out: Array) -> int:
    count = segment.size // width
    raw = out.view(np.uint8).reshape(-1, width)
    # Start at the first tag, so that a tag precedes every number.
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
    """Return ``flat``, in storage order, as a C-contiguous array of ``shape``.

    ``marks`` is field 3 of the record: empty, one flag 0 or 1 ("transposed", up to 1.1.1), or one
    stride for each axis (from 1.2.0). Errors: `FileFormatError` for other marks.
    """
    if len(marks) == len(shape) > 1:
        return _strided(flat, shape, marks, where)
    if not marks or len(shape) < 2:
        # The order does not matter for one axis.
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


MAGIC = b"sg"
VERSION_KEY = "SINGA_VERSION"
# Bytes in memory of a record, and of each segment of its data.
_RECORD, _SEGMENT = 600, 130
EMPTY_KEY = "SINGANET_EMPTY"
"""The key of the single record of a snapshot without arrays."""


class SnapshotReader(StreamReader):
    """A reader that lists the records of a snapshot, then reads one at a time."""

    format = "snapshot"

    def __init__(self, path: Path) -> None:
        self._records: dict[str, Record] = {}
        super().__init__(find_records(path))

    def _list(self) -> None:
        ours, left, singa = False, 0, ""
        budget = Budget(self._size, self._refused)
        at = 0
        while at < self._size:
            key, record, stored, at = self._next_record(at)
            budget.spend(_RECORD + _SEGMENT * len(record.segments))
            where = f"{self.where}, record {key!r}"
            head = record.head
            if head.HasField("format_version"):
                ours = True
                self.version = f"singanet format {check_version(head.format_version, where)}"
            left = head.records_left
            if key == VERSION_KEY and not ours:
                self._records[key] = record
                singa = str(int(self._read(self._entry(key, record, stored)).flat[0]))
            elif key != EMPTY_KEY or not ours:
                self._add(head.name or key, record, stored)
        if left or not self._size:
            raise truncated(self.where, f"{left or 'some'} more records", "none")
        if not ours:
            self._describe(singa)

    def _refused(self, expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=expected,
            received=received,
            advice="the file is damaged or forged: download it again",
        )

    def _describe(self, singa: str) -> None:
        """Set the version from ``.desc``, and check that all its records are in the file."""
        version, names = read_desc(self.path.with_suffix(".desc"))
        self.version = f"SINGA {singa or version or 'of unknown version'}"
        lost = sorted(names - self.entries.keys() - {VERSION_KEY})
        if lost:
            raise truncated(self.where, f"{lost[0]!r}, which the .desc file lists", "other arrays")

    def _next_record(self, start: int) -> tuple[str, Record, int, int]:
        """Return key, record, size and end of the record at byte ``start``."""
        where = f"{self.where}, at byte {start}"
        self._stream.seek(start)
        mark = self._exactly(4, where)
        if not mark.startswith(MAGIC) or mark[2:] not in (b"\0\0", b"\1\0"):
            raise FileFormatError(
                where,
                expected="a record that starts with 'sg' and 1 or 0",
                received=brief(mark),
                advice="the file is not a snapshot, or is damaged: use an earlier checkpoint",
            )
        at = start + 12
        size = self._length(at, where, "key" if mark[2] else "value")
        if mark[2]:
            key = self._key(size, where)
            at += size + 8
            size = self._length(at, where, "value")
        else:
            key = f"record{len(self.entries)}"
        record = parse_record(self._stream, at, size, f"{self.where}, record {key!r}")
        return key, record, size, at + size

    def _key(self, size: int, where: str) -> str:
        if size > MAX_NAME_BYTES:
            check_name(" " * size if size < 1 << 24 else "", where)
        try:
            key = self._exactly(size, where).decode()
        except UnicodeDecodeError:
            key = "\ufffd\0"  # refused below as an invalid name
        return check_name(key, where)

    def _length(self, end: int, where: str, what: str) -> int:
        """Return the length field before byte ``end``, where its content starts."""
        size = int.from_bytes(self._exactly(8, where), "little")
        there = self._size - end
        if size > there:
            raise truncated(where, f"a {what} of {size} bytes", f"{there} bytes")
        return size

    def _exactly(self, size: int, where: str) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise truncated(where, f"{size} bytes", f"{len(data)} bytes")
        return data

    def _entry(self, name: str, record: Record, stored: int) -> Entry:
        where = f"{self.where}, record {name!r}"
        # A varint takes at least one byte.
        limit = stored * (record.kind.dtype.itemsize if not record.kind.width else 1)
        shape = check_shape(tuple(record.head.shape), record.kind.dtype.itemsize, limit, where)
        count, there = math.prod(shape), count_stored(record)
        if there is not None and there != count:
            raise wrong_count(where, shape, count, there)
        return Entry(name, shape, record.kind.dtype, stored, record.head.checksum.hex())

    def _add(self, name: str, record: Record, stored: int) -> None:
        check_name(name, self.where)
        if name in self.entries:
            raise duplicate(name, self.where)
        if len(self.entries) >= MAX_ARRAYS:
            raise too_many(self.where)
        self.entries[name] = self._entry(name, record, stored)
        self._records[name] = record

    def _read(self, entry: Entry) -> Array:
        where = f"{self.where}, record {entry.name!r}"
        record = self._records[entry.name]
        flat, digest = read_data(self._stream, record, self._hasher, where)
        check_digest(entry, digest, self.where)
        return in_shape(flat, entry.shape, record.head.stride, where)


LARGEST = (1 << 31) - 1
"""The maximum bytes of a protobuf message; SINGA reads only the low 32 bits of a length."""
_WRITTEN_CHUNK = 1 << 16


def write_snapshot(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    plain: bool = False,
) -> None:
    """Write ``<prefix>.bin`` and ``<prefix>.desc``; ``path`` is the prefix or the ``.bin``.

    The key of ``conv/weight`` is ``conv_weight``, so that every SINGA from 1.1.0 on finds it; our
    own fields store the full name and the checksum. ``plain`` omits our fields and writes the exact
    bytes of SINGA 1.1. Errors: `ArgumentError` for a type that records lack or an array above 2
    GiB; `FileAccessError`.
    """
    path = record_path(path)
    _check(f"snapshot file {str(path)!r}", sources)
    keys = record_keys([source.name for source in sources])
    # Replaced in reverse order: .bin first, since .desc only describes it.
    text = desc_text(sources, keys, plain).encode()
    with (
        replacing(path.with_suffix(".desc"), nbytes=len(text)) as desc,
        replacing(path, nbytes=total_bytes(sources)) as records,
    ):
        desc.write_bytes(text)
        with records.open("wb", buffering=0) as stream, ChecksumThread() as hasher:
            for index, source in enumerate(sources):
                left = len(sources) - index - 1
                _write_record(stream, source, keys[source.name], left, plain, hasher)
            if not sources and not plain:
                _write(stream, _start(EMPTY_KEY, len(empty := _tail(0, "", b""))) + empty)


def _check(where: str, sources: Sequence[Source]) -> None:
    for source in sources:
        if source.dtype not in DATA_TYPES:
            raise ArgumentError(
                f"{where}, array {source.name!r}",
                expected=f"a type among {', '.join(str(dtype) for dtype in DATA_TYPES)}",
                received=str(source.dtype),
                advice="convert the array, or use safetensors, hdf5 or npz",
            )
        if source.nbytes > LARGEST - 4096:
            raise ArgumentError(
                f"{where}, array {source.name!r}",
                expected="less than 2 GiB, the limit of a protobuf record",
                received=f"{source.nbytes} bytes",
                advice="use safetensors, hdf5 or npz",
            )


def _write_record(
    stream: BinaryIO, source: Source, key: str, left: int, plain: bool, hasher: ChecksumThread
) -> None:
    array = source.array()
    number = DATA_TYPES[source.dtype]
    kind = KINDS[number]
    # No stride: absent means row-major in every release, while 0 means "repeated" in some.
    head = TensorProto(shape=source.shape, data_type=number, stride=[0] if plain else [])
    start = head.SerializeToString()
    size = array.nbytes if kind.width else encoded_size(array)
    if size:
        start += encode(kind.field << 3 | 2) + encode(size)
    name = "" if key == source.name else source.name
    tail_size = 0 if plain else len(_tail(left, name, bytes(SIZE)))
    _write(stream, _start(key, len(start) + size + tail_size) + start)
    if kind.width:
        checksum = write_bytes(stream, bytes_of(array), hasher)
    else:
        checksum = _write_integers(stream, array)
    if not plain:
        _write(stream, _tail(left, name, checksum))


def _write_integers(stream: BinaryIO, array: Array) -> bytes:
    checksum = Checksum()
    flat = array.reshape(-1)
    for start in range(0, flat.size, _WRITTEN_CHUNK):
        piece = encode_all(flat[start : start + _WRITTEN_CHUNK])
        checksum.update(piece)
        _write(stream, piece)
    return checksum.digest()


def _start(key: str, size: int) -> bytes:
    raw = key.encode()
    return b"".join(
        (MAGIC, b"\1\0", len(raw).to_bytes(8, "little"), raw, size.to_bytes(8, "little"))
    )


def _tail(left: int, name: str, checksum: bytes) -> bytes:
    fields = TensorProto(format_version=FORMAT_VERSION, records_left=left, checksum=checksum)
    if name:
        fields.name = name
    tail: bytes = fields.SerializeToString()
    return tail


def _write(stream: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]
