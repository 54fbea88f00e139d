"""Reading pickled dicts of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.checksum import Checksum
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.names import check_name, duplicate
from singanet.checkpoint.pickle.arrays import Pickled, recognise, text
from singanet.checkpoint.pickle.steps import run_program
from singanet.checkpoint.pickle.strings import RAW, pieces
from singanet.checkpoint.pickle.tokens import Text
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.singa import find_pickle
from singanet.checkpoint.streaming import as_bools, bytes_of, check_digest, read_bytes
from singanet.checkpoint.version import KEY, check_version
from singanet.errors import FileFormatError
from singanet.types import Array

VERSION_KEY = "SINGA_VERSION"
NAMES, CHECKSUMS = "singanet_names", "singanet_checksums"


class PickleReader(StreamReader):
    """The arrays of a pickled dict; nothing in the file is imported, called or built."""

    format = "pickle"

    def __init__(self, path: Path) -> None:
        self._arrays: dict[str, Pickled] = {}
        super().__init__(find_pickle(path))

    def _list(self) -> None:
        found = run_program(self._stream, self._size, self.where)
        if type(found) is not dict:
            raise self._damaged("a dict from names to arrays", type(found).__name__)
        try:
            items = {text(key): value for key, value in found.items()}
        except TypeError:
            raise self._damaged("names that are strings", "other keys") from None
        singa, mark = items.pop(VERSION_KEY, None), items.pop(KEY, None)
        names = _texts(items.pop(NAMES, {}))
        checksums = _texts(items.pop(CHECKSUMS, {}))
        if mark is not None:
            self.version = f"singanet format {check_version(mark, self.where)}"
        else:
            known = singa if isinstance(singa, int) else "of unknown version"
            self.version = f"SINGA {known}"
        for key, value in items.items():
            name = check_name(names.get(key, key), self.where)
            if name in self.entries:
                raise duplicate(name, self.where)
            array = recognise(name, value, self._size, self.where)
            entry = array.entry
            checksum = "" if mark is None else checksums.get(key, "none")
            self.entries[name] = Entry(name, entry.shape, entry.dtype, entry.stored, checksum)
            self._arrays[name] = array

    def _read(self, entry: Entry) -> Array:
        pickled = self._arrays[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        flat = np.empty(entry.nbytes // entry.dtype.itemsize, pickled.dtype)
        digest = self._fill(bytes_of(flat), pickled.data, where)
        check_digest(entry, digest, self.where)
        order = "F" if pickled.fortran_order else "C"
        array = as_bools(flat).reshape(entry.shape, order=order)  # type: ignore[call-overload]
        return np.asarray(array, dtype=entry.dtype, order="C")

    def _fill(self, out: memoryview, data: bytes | Text, where: str) -> bytes:
        if isinstance(data, Text) and data.coding == RAW and data.size == len(out):
            self._stream.seek(data.offset)
            return read_bytes(self._stream, out, self._beside, where)
        checksum, filled = Checksum(), 0
        try:
            parts = pieces(self._stream, data) if isinstance(data, Text) else [data]
            for piece in parts:
                if len(piece) > len(out) - filled:
                    raise ValueError(f"more than {len(out)} bytes of elements")
                out[filled : filled + len(piece)] = piece
                checksum.update(piece)
                filled += len(piece)
            if filled < len(out):
                raise ValueError(f"{filled} bytes of elements")
        except ValueError as error:
            raise self._damaged(f"{len(out)} bytes for {where}", str(error)) from None
        return checksum.digest()

    def _damaged(self, expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=expected,
            received=received,
            advice="the file is damaged, or holds more than weights: write it again",
        )


def _texts(value: Any) -> dict[str, str]:
    """A dict of our own from text to text; whatever else stands there is left out."""
    items = value.items() if type(value) is dict else []
    return {
        text(key): text(item)
        for key, item in items
        if isinstance(key, (str, bytes)) and isinstance(item, (str, bytes))
    }
