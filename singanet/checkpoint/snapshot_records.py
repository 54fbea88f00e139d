"""Records of a SINGA snapshot and their protobuf encoding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from singanet.checkpoint.core_pb2 import TensorProto
from singanet.checkpoint.entry import FORMAT_VERSION, Source, truncated
from singanet.errors import FileFormatError
from singanet.types import Array

# DataType of core.proto.
FLOAT32, FLOAT16, INT, CHAR, DOUBLE, UCHAR = range(6)

BYTES_FIELD, INT_FIELD = 7, 6


class ElementType(NamedTuple):
    """An element type; ``width`` is the size of one number in the file, 0 for varints."""

    dtype: np.dtype[Any]
    field: int
    width: int
    wire: int
    """The wire type of one unpacked number."""


KINDS: dict[int, ElementType] = {
    FLOAT32: ElementType(np.dtype("<f4"), 4, 4, 5),
    DOUBLE: ElementType(np.dtype("<f8"), 5, 8, 1),
    INT: ElementType(np.dtype("<i4"), INT_FIELD, 0, 0),
    # SINGA declares these types but never writes them; bytes_data is the field reserved for them.
    FLOAT16: ElementType(np.dtype("<f2"), BYTES_FIELD, 2, 2),
    CHAR: ElementType(np.dtype("i1"), BYTES_FIELD, 1, 2),
    UCHAR: ElementType(np.dtype("u1"), BYTES_FIELD, 1, 2),
}

DATA_TYPES = {kind.dtype: number for number, kind in KINDS.items()}
DATA_FIELDS = {kind.field for kind in KINDS.values()}


SINGA_VERSION = 1101
"""The SINGA release of the record layout that we write."""
_LONGEST = 1 << 24


def desc_text(sources: Sequence[Source], keys: Mapping[str, str], plain: bool) -> str:
    """Return SINGA's lines, each array under its key; with our format version unless ``plain``."""
    first = f"{SINGA_VERSION}" if plain else f"{SINGA_VERSION}\tsinganet format: {FORMAT_VERSION}"
    lines = [first]
    for source in sources:
        shape = " ".join(str(axis) for axis in source.shape)
        lines.append(
            f"parameter name: {keys[source.name]}\tdata type: {DATA_TYPES[source.dtype]}\t"
            f"dim: {len(source.shape)}\tshape: {shape}"
        )
    return "\n".join(lines) + "\n"


def read_desc(path: Path) -> tuple[str, set[str]]:
    """Return the SINGA version, or "", and the parameter names of the file at ``path``.

    Unknown lines are ignored: no reader of SINGA uses this file.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return "", set()
    version = re.match(r"(?:SINGA VERSION: )?(\d{1,9})\s", text)
    names = re.findall(r"^parameter name: ([^\t\n]+)\t", text, re.MULTILINE)
    return version[1] if version else "", set(names)


LONGEST = 10


def encode(value: int) -> bytes:
    """Encode one unsigned ``value`` as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encoded_size(values: Array) -> int:
    """Return the number of bytes of `encode_all` for int32 ``values``."""
    signed = values.astype(np.int64)
    size = signed.size + (LONGEST - 1) * int((signed < 0).sum())
    return size + sum(int((signed >= 1 << 7 * k).sum()) for k in range(1, 5))


def encode_all(values: Array) -> bytes:
    """Encode int32 ``values`` as varints; negative ones take ten bytes, as protobuf requires."""
    words = values.astype(np.int64).view(np.uint64).reshape(-1, 1)
    groups = words >> np.arange(0, 7 * LONGEST, 7, dtype=np.uint64)
    there = groups != 0
    there[:, 0] = True
    more = np.zeros_like(there)
    more[:, :-1] = there[:, 1:]
    data = (groups & np.uint64(0x7F)).astype(np.uint8) | more.astype(np.uint8) << 7
    return data[there].tobytes()


def decode_all(data: bytes) -> tuple[Array, int]:
    """Decode the complete varints at the start of ``data`` as int32; return them and their bytes.

    Raises ValueError for a varint of more than ten bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not len(ends):
        if len(raw) >= LONGEST:
            raise ValueError("a number of more than ten bytes")
        return np.zeros(0, np.int32), 0
    raw = raw[: ends[-1] + 1]
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends + 1 - starts
    if lengths.max() > LONGEST:
        raise ValueError("a number of more than ten bytes")
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, lengths))
    parts = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    words = np.bitwise_or.reduceat(parts, starts)
    return (words & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32), len(raw)


_MOST_HEAD = 1 << 16
_MOST_SEGMENTS = 1000
_WINDOW = 512
_NUMBER = re.compile(rb"[\x80-\xff]{0,%d}[\x00-\x7f]" % (LONGEST - 1))
# Complete varint fields that are not data, which are most of a head: tag, number, tag, number.
_SHORT = re.escape(bytes(number << 3 for number in range(1, 16) if number not in DATA_FIELDS))
_LONG = re.escape(bytes(range(0x80, 0x100, 8)))  # the first bytes of tags from 16 on
_PLAIN = re.compile(
    rb"(?:(?:[%s]|[%s][\x80-\xff]{0,3}[\x01-\x7f])%s)+" % (_SHORT, _LONG, _NUMBER.pattern)
)
_CHUNK = 5 * 9 << 14  # a multiple of both unpacked widths


class DataRun(NamedTuple):
    """A run of data; ``step`` is 0 for packed numbers, otherwise their distance in bytes.

    A run of unpacked varints, whose lengths vary, includes their tags.
    """

    field: int
    offset: int
    size: int
    step: int


@dataclass(slots=True)
class Record:
    """A record: ``head`` is the message without data, ``segments`` have data of type ``kind``."""

    head: Any
    kind: ElementType
    segments: list[DataRun]


def parse_record(stream: BinaryIO, offset: int, size: int, where: str) -> Record:
    """Parse the record whose value takes ``size`` bytes from ``offset`` on.

    Errors: `FileFormatError` if it is not exactly one ``TensorProto``.
    """
    scanner = _Scanner(stream, offset, offset + size, where)
    while scanner.position < scanner.end:
        scanner.field()
    try:
        head = TensorProto.FromString(bytes(scanner.head))
        if not isinstance(head.name, str):  # protobuf returns invalid UTF-8 as bytes
            raise scanner.broken("a name that is not a string")
    except (DecodeError, UnicodeError) as error:
        raise scanner.broken(str(error) or "no TensorProto") from None
    kind = KINDS[head.data_type]
    for segment in scanner.segments:
        if segment.field != kind.field:
            raise scanner.broken(f"data of another type than {kind.dtype}")
    return Record(head, kind, scanner.segments)


class _Scanner:
    """A scanner of the fields of a message that skips the data."""

    def __init__(self, stream: BinaryIO, start: int, end: int, where: str) -> None:
        self.stream = stream
        self.position = start
        self.end = end
        self.where = where
        self._window = b""
        self._start = start
        self.head = bytearray()
        self.segments: list[DataRun] = []

    def field(self) -> None:
        """Read one or several fields into ``head``, or data into ``segments``."""
        at = self.position - self._start
        if not 0 <= at < len(self._window):
            self._look(1)
            at = 0
        plain = _PLAIN.match(self._window, at)
        if plain:
            self.position += len(plain[0])
            self._add(plain[0])
            return
        raw, tag = self._varint()
        number, wire = tag >> 3, tag & 7
        if number in DATA_FIELDS and wire == 2:
            _, size = self._varint()
            self._segment(number, size, 0)
        elif number in DATA_FIELDS:
            kind = next(kind for kind in KINDS.values() if kind.field == number)
            if wire != kind.wire:
                raise self.broken(f"field {number} of wire type {wire}")
            if wire == 0:
                self._unpacked_int(len(raw), number)
            else:
                self._unpacked(raw, number, kind.width)
        else:
            self._keep(raw, wire)

    def _keep(self, raw: bytes, wire: int) -> None:
        if wire == 0:
            raw += self._varint()[0]
        elif wire == 2:
            prefix, size = self._varint()
            raw += prefix + self._bytes(size)
        elif wire in (1, 5):
            raw += self._bytes(8 if wire == 1 else 4)
        else:
            raise self.broken(f"wire type {wire}")
        self._add(raw)

    def _add(self, raw: bytes) -> None:
        self.head += raw
        if len(self.head) > _MOST_HEAD:
            raise self.broken(f"more than {_MOST_HEAD} bytes without the data")

    def _segment(self, number: int, size: int, step: int) -> None:
        if size > self.end - self.position:
            raise truncated(
                self.where, f"{size} bytes of data", f"{self.end - self.position} bytes"
            )
        self._append(DataRun(number, self.position, size, step))
        self.position += size

    def _unpacked_int(self, tag_size: int, number: int) -> None:
        """Add an integer with its tag; adjacent ones form one segment, with their tags."""
        start = self.position - tag_size
        self._varint()
        size = self.position - start
        last = self.segments[-1] if self.segments else None
        if last and last.step and last.field == number and last.offset + last.size == start:
            self.segments[-1] = last._replace(size=last.size + size)
        else:
            self._append(DataRun(number, start, size, tag_size))

    def _unpacked(self, raw: bytes, number: int, width: int) -> None:
        """Add a run of numbers with a tag each, as protobuf wrote them in 1.0.0."""
        step = len(raw) + width
        first = self.position
        self._bytes(width)
        count = 1
        while step <= self.end - self.position:
            wanted = min(_CHUNK, self.end - self.position) // step * step
            block = np.frombuffer(self._bytes(wanted), np.uint8).reshape(-1, step)
            same = (block[:, : len(raw)] == np.frombuffer(raw, np.uint8)).all(axis=1)
            whole = int(same.argmin()) if not same.all() else len(same)
            count += whole
            if whole < len(same):
                self.position -= (len(same) - whole) * step
                break
        self._append(DataRun(number, first, count * width, step))

    def _append(self, segment: DataRun) -> None:
        self.segments.append(segment)
        if len(self.segments) > _MOST_SEGMENTS:
            raise self.broken(f"data in more than {_MOST_SEGMENTS} pieces")

    def _bytes(self, size: int) -> bytes:
        at = self.position - self._start
        if not 0 <= at <= len(self._window) - size:
            self._look(size)
            at = 0
        self.position += size
        return self._window[at : at + size]

    def _look(self, size: int) -> None:
        """Read a window of at least ``size`` bytes, since single bytes would take as long."""
        left = self.end - self.position
        if size > min(left, 1 << 20):
            raise truncated(self.where, f"{size} bytes", f"{left} bytes")
        self.stream.seek(self.position)
        self._window = self.stream.read(min(max(size, _WINDOW), left))
        self._start = self.position
        if len(self._window) < size:
            raise truncated(self.where, f"{size} bytes", f"{len(self._window)} bytes")

    def _varint(self) -> tuple[bytes, int]:
        at = self.position - self._start
        found = _NUMBER.match(self._window, at) if at >= 0 else None
        if not found:
            self._look(1)
            found = _NUMBER.match(self._window)
        if not found:
            if len(self._window) < LONGEST:
                raise truncated(self.where, "the end of a number", "none")
            raise self.broken("a number of more than ten bytes")
        raw: bytes = found[0]
        self.position += len(raw)
        value = raw[0] & 0x7F
        for place, byte in enumerate(raw[1:], 1):
            value |= (byte & 0x7F) << 7 * place
        return raw, value

    def broken(self, what: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected="a TensorProto written by SINGA",
            received=what,
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        )
