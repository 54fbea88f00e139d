"""Reading safetensors files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from singanet.base.budget import Budget, read_json
from singanet.checkpoint.checksum import Checksum
from singanet.checkpoint.entry import Entry, run_shape, runs_of_rows
from singanet.checkpoint.halves import BFLOAT, widen
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.safetensors.header import (
    CHECKSUMS,
    LONGEST,
    METADATA,
    TABLE,
    broken,
    parse,
)
from singanet.checkpoint.streaming import (
    as_bools,
    bytes_of,
    check_digest,
    read_bytes,
    read_exactly,
    truncated,
)
from singanet.checkpoint.version import KEY, REWRITTEN, check_version
from singanet.types import Array


class SafetensorsReader(StreamReader):
    """Arrays in the order of the table; bfloat16 is read as float32, or as its uint16 ``words``."""

    format = "safetensors"

    def __init__(self, path: Path, words: bool = False) -> None:
        self._words = words
        super().__init__(path)

    def _list(self) -> None:
        start = self._stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > self._size - 8:
            raise truncated(self.where, f"a table of {length} bytes", f"{self._size} in all")
        if length > LONGEST:
            raise broken(self.where, f"a table of at most {LONGEST} bytes", str(length))
        data = 8 + length
        raw = self._stream.read(length)
        self.metadata, found = parse(raw, self._size - data, self.where)
        checksums = self._our_checksums(raw)
        self._places = {entry.name: data + offset for offset, entry in found}
        for _, entry in found:
            name, dtype = entry.name, entry.dtype
            checksum = "" if checksums is None else str(checksums.get(name, "none"))
            if entry.kind == BFLOAT and self._words:
                dtype = np.dtype("<u2")
            self.entries[name] = Entry(name, entry.shape, dtype, entry.stored, checksum, entry.kind)
        for name, kept in self._share(self.metadata).items():
            self._places[name] = self._places[kept]

    def _our_checksums(self, raw: bytes) -> dict[str, str] | None:
        """The checksums of a file of ours, which are taken out of the metadata.

        They are of other arrays where another program has copied them: its metadata stand in front
        of the rows of ``raw``. Files of earlier versions have no checksum of the rows.
        """
        mark, sealed = self.metadata.pop(KEY, None), self.metadata.pop(TABLE, None)
        if mark is None:
            return None
        self.version = f"singanet format {check_version(mark, self.where)}"
        text = self.metadata.pop(CHECKSUMS, "").encode("utf-8", "replace")
        rows, _, _ = raw.rpartition(b'"%s":' % METADATA.encode())
        if sealed is not None and b'"data_offsets":' not in rows and b'"data_offsets":' in raw:
            self.version += REWRITTEN
            return None
        if sealed not in (None, Checksum().update(rows.removesuffix(b",") + b"}").text()):
            raise broken(self.where, f"a table of the checksum {sealed}", "another one")
        budget = Budget(self._size, partial(broken, self.where))
        checksums = read_json(text, budget, "a checksum for each array")
        if not isinstance(checksums, dict):
            raise broken(self.where, "a checksum for each array", "none that can be read")
        return checksums

    def _read(self, entry: Entry) -> Array:
        if self._widens(entry):
            return self._filled(entry)
        array = np.empty(entry.shape, entry.dtype)
        self._stream.seek(self._places[entry.name])
        where = f"{self.where}, array {entry.name!r}"
        digest = read_bytes(self._stream, bytes_of(array), self._beside, where)
        check_digest(entry, digest, self.where)
        return as_bools(array)

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        where = f"{self.where}, array {entry.name!r}"
        widens, at = self._widens(entry), self._places[entry.name]
        stored = np.dtype("<u2") if widens else entry.dtype
        checksum = Checksum()
        for rows in runs_of_rows(entry.shape, entry.dtype.itemsize):
            piece = np.empty(run_shape(entry.shape, rows), stored)
            self._stream.seek(at)  # another array may have been read since the piece before
            at += piece.nbytes
            read_exactly(self._stream, bytes_of(piece), where)
            checksum.update(bytes_of(piece))
            yield widen(piece) if widens else as_bools(piece)
            del piece
        check_digest(entry, checksum.digest(), self.where)

    def _widens(self, entry: Entry) -> bool:
        return entry.kind == BFLOAT and not self._words
