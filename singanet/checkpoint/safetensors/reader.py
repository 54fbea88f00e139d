"""Reading safetensors files."""

from __future__ import annotations

from functools import partial

import numpy as np

from singanet.base.budget import Budget, read_json
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.safetensors.header import BFLOAT, CHECKSUMS, LONGEST, broken, parse
from singanet.checkpoint.streaming import (
    as_bools,
    bytes_of,
    check_digest,
    read_bytes,
    truncated,
    widen,
)
from singanet.checkpoint.version import KEY, check_version
from singanet.types import Array


class SafetensorsReader(StreamReader):
    """Arrays in the order of the table; bfloat16 is read as float32."""

    format = "safetensors"

    def _list(self) -> None:
        start = self._stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > self._size - 8:
            raise truncated(self.where, f"a table of {length} bytes", f"{self._size} in all")
        if length > LONGEST:
            raise broken(self.where, f"a table of at most {LONGEST} bytes", str(length))
        data = 8 + length
        self.metadata, found = parse(self._stream.read(length), self._size - data, self.where)
        checksums = self._our_checksums()
        self._places = {entry.name: (data + offset, kind) for offset, kind, entry in found}
        for _, _, entry in found:
            checksum = ""
            if checksums is not None:
                checksum = str(checksums.get(entry.name, "none"))
            self.entries[entry.name] = Entry(
                entry.name, entry.shape, entry.dtype, entry.stored, checksum
            )

    def _our_checksums(self) -> dict[str, str] | None:
        """The checksums of a file of ours, which are taken out of the metadata."""
        mark = self.metadata.pop(KEY, None)
        if mark is None:
            return None
        self.version = f"singanet format {check_version(mark, self.where)}"
        text = self.metadata.pop(CHECKSUMS, "").encode("utf-8", "replace")
        budget = Budget(self._size, partial(broken, self.where))
        checksums = read_json(text, budget, "a checksum for each array")
        if not isinstance(checksums, dict):
            raise broken(self.where, "a checksum for each array", "none that can be read")
        return checksums

    def _read(self, entry: Entry) -> Array:
        offset, kind = self._places[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        stored = np.empty(entry.shape, "<u2" if kind == BFLOAT else entry.dtype)
        self._stream.seek(offset)
        digest = read_bytes(self._stream, bytes_of(stored), self._beside, where)
        check_digest(entry, digest, self.where)
        return widen(stored) if kind == BFLOAT else as_bools(stored)
