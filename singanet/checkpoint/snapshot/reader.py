"""Reading SINGA's snapshots: ``.bin`` (``.model`` in 1.0.0) with ``.desc``."""

from __future__ import annotations

import math
from pathlib import Path

from singanet.base.arguments import MAX_NAME_BYTES
from singanet.base.budget import Budget
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.names import MAX_ARRAYS, check_name, duplicate, too_many
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.singa import find_records
from singanet.checkpoint.snapshot.data import count_stored, in_shape, read_data, wrong_count
from singanet.checkpoint.snapshot.desc import read_desc
from singanet.checkpoint.snapshot.record import Record, parse_record
from singanet.checkpoint.streaming import check_digest, check_shape, truncated
from singanet.checkpoint.version import check_version
from singanet.errors import FileFormatError
from singanet.types import Array

MAGIC = b"sg"
VERSION_KEY = "SINGA_VERSION"
# What is kept of a record, and of each piece of its data, in memory.
_RECORD, _SEGMENT = 600, 130
EMPTY_KEY = "SINGANET_EMPTY"
"""The key of the one record of a snapshot without arrays."""


class SnapshotReader(StreamReader):
    """Lists the records of a snapshot, then reads one at a time."""

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
            advice="the file is damaged or forged: get it again",
        )

    def _describe(self, singa: str) -> None:
        """Take the version from ``.desc``, and look there for records that are missing here."""
        version, names = read_desc(self.path.with_suffix(".desc"))
        self.version = f"SINGA {singa or version or 'of unknown version'}"
        lost = sorted(names - self.entries.keys() - {VERSION_KEY})
        if lost:
            raise truncated(self.where, f"{lost[0]!r}, which the .desc file lists", "other arrays")

    def _next_record(self, start: int) -> tuple[str, Record, int, int]:
        """Key, record and size of the one at byte ``start``, and where it ends."""
        where = f"{self.where}, at byte {start}"
        self._stream.seek(start)
        mark = self._exactly(4, where)
        if not mark.startswith(MAGIC) or mark[2:] not in (b"\0\0", b"\1\0"):
            raise FileFormatError(
                where,
                expected="a record that starts with 'sg' and 1 or 0",
                received=repr(mark),
                advice="the file is no snapshot, or is damaged: use an earlier checkpoint",
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
            key = "\ufffd\0"  # refused below, as what it is: no name
        return check_name(key, where)

    def _length(self, end: int, where: str, what: str) -> int:
        """The length that stands before byte ``end``, of what begins there."""
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
        # Ten unpacked or packed varints never take fewer than one byte each.
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
        flat, digest = read_data(self._stream, record, self._beside, where)
        check_digest(entry, digest, self.where)
        return in_shape(flat, entry.shape, record.head.stride, where)
