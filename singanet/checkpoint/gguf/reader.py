"""Reading GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from singanet.checkpoint.checksum import SIZE, Checksum
from singanet.checkpoint.entry import Entry, run_shape, runs_of_rows
from singanet.checkpoint.gguf.header import GgufTable, broken, parse
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.streaming import bytes_of, check_digest, read_exactly
from singanet.checkpoint.version import REWRITTEN, check_version
from singanet.types import Array

FORMAT_KEY = "singanet.format"
CHECKSUMS_KEY = "singanet.checksums"
"""A text for each array: its type, a space, its checksum."""
SEALED_KEY, SEAL = "singanet.sealed", b"SNET"
"""Where there is such a text, the bytes before the first array end with the seal and the checksum
of the rows of arrays. Programs that write a file again copy the text, and fill with zeros."""


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
        ours = self._take_checksums(header)
        filled = header.end + -header.end % header.alignment
        if self._size not in ((filled,) if ours else (header.end, filled)):
            raise broken(self.where, f"{filled} bytes, as the table says", str(self._size))
        self.metadata = {key: _told(value) for key, value in self.values.items()}

    def _take_checksums(self, header: GgufTable) -> bool:
        """Take our marks out of the values; whether they are of this file's arrays."""
        mark, sealed = self.values.pop(FORMAT_KEY, None), self.values.pop(SEALED_KEY, None)
        texts = self.values.pop(CHECKSUMS_KEY, None)
        if mark is None:
            return False
        self.version = f"singanet format {check_version(mark, self.where)}"
        if not isinstance(texts, list):
            raise broken(self.where, "a checksum for each array", "none")
        known = [str(text).partition(" ") for text in texts]
        kinds = [block.name for block in self._blocks.values()]
        fits = [kind for kind, _, _ in known] == kinds
        if not (fits if sealed is None else self._is_sealed(header)):
            self.version += REWRITTEN
            return False
        if not fits:
            raise broken(self.where, "a type and a checksum for each array", "others")
        for (name, entry), (_, _, checksum) in zip(self.entries.items(), known, strict=True):
            self.entries[name] = replace(entry, checksum=checksum or "none")
        return True

    def _is_sealed(self, header: GgufTable) -> bool:
        """Whether we wrote the file as it is. Errors: rows that are not those that we wrote."""
        begin, end = header.rows
        start = end + -end % header.alignment
        self._stream.seek(begin)
        rows, rest = self._stream.read(end - begin), self._stream.read(start - end)
        seal = rest[-len(SEAL) - SIZE :]
        if not seal.startswith(SEAL):
            return False
        if seal[len(SEAL) :] != Checksum().update(rows).digest():
            raise broken(self.where, "a table of the checksum that it has", "another one")
        return True

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
