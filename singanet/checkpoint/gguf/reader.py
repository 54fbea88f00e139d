"""Reading GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from singanet.checkpoint.checksum import Checksum
from singanet.checkpoint.entry import Entry, run_shape, runs_of_rows
from singanet.checkpoint.gguf.header import broken, parse
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.streaming import bytes_of, check_digest, read_exactly
from singanet.checkpoint.version import check_version
from singanet.types import Array

FORMAT_KEY = "singanet.format"
CHECKSUMS_KEY = "singanet.checksums"
"""A text for each array: its type, a space, its checksum."""


class GgufReader(StreamReader):
    """Arrays in the order of the table; blocks and bfloat16 are read as float32.

    ``values`` are the typed values of the file: truth values, NumPy's numbers, texts, arrays of
    numbers, lists of texts.
    """

    format = "gguf"

    def _list(self) -> None:
        header = parse(self._stream, self._size, self.where)
        self.values: dict[str, Any] = header.values
        self.entries = header.entries
        self._places, self._blocks = header.offsets, header.blocks
        filled = header.end + -header.end % header.alignment
        sizes = (filled,) if FORMAT_KEY in self.values else (header.end, filled)
        if self._size not in sizes:
            raise broken(self.where, f"{filled} bytes, as the table says", str(self._size))
        self._take_checksums()
        self.metadata = {key: _told(value) for key, value in self.values.items()}

    def _take_checksums(self) -> None:
        mark = self.values.pop(FORMAT_KEY, None)
        if mark is None:
            return
        self.version = f"singanet format {check_version(mark, self.where)}"
        texts = self.values.pop(CHECKSUMS_KEY, None)
        if not isinstance(texts, list) or len(texts) != len(self.entries):
            raise broken(self.where, "a checksum for each array", "fewer, more or none")
        for (name, entry), text in zip(self.entries.items(), texts, strict=True):
            kind, _, checksum = str(text).partition(" ")
            if kind != self._blocks[name].name:
                received = f"{self._blocks[name].name} in the table"
                raise broken(self.where, f"array {name!r} as {kind[:20]}", received)
            self.entries[name] = replace(entry, checksum=checksum or "none")

    def _read(self, entry: Entry) -> Array:
        return self._filled(entry)

    def _of_blocks(self, entry: Entry) -> Array | None:
        block = self._blocks[entry.name]
        if len(entry.shape) != 2 or block.elements == 1:
            return None
        raw = np.empty(block.stored(entry.shape), np.uint8)
        self._stream.seek(self._places[entry.name])
        read_exactly(self._stream, bytes_of(raw), f"{self.where}, array {entry.name!r}")
        checksum = Checksum()
        checksum.update(bytes_of(raw))
        check_digest(entry, checksum.digest(), self.where)
        return raw.reshape(entry.shape[0], entry.shape[1] // block.elements, block.nbytes)

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        block, at = self._blocks[entry.name], self._places[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        checksum = Checksum()
        for rows in runs_of_rows(entry.shape, entry.dtype.itemsize):
            shape = run_shape(entry.shape, rows)
            raw = np.empty(block.stored(shape), np.uint8)
            self._stream.seek(at)  # another array may have been read since the piece before
            at += raw.nbytes
            read_exactly(self._stream, bytes_of(raw), where)
            checksum.update(bytes_of(raw))
            if block.decode is None:
                yield raw.view(block.dtype).reshape(shape)
            else:
                yield block.decode(raw.reshape(-1, block.nbytes)).reshape(shape)
            del raw
        check_digest(entry, checksum.digest(), self.where)


def _told(value: Any) -> str:
    """``value`` as text; of an array how many there are."""
    if isinstance(value, (list, np.ndarray)):
        what = value.dtype if isinstance(value, np.ndarray) else "texts or arrays"
        return f"{len(value)} of {what}"
    return str(value).encode("utf-8", "replace").decode()
