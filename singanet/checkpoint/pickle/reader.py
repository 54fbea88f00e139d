"""Reading pickled dicts of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.budget import Budget
from singanet.checkpoint.checksum import Checksum
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.names import check_name, duplicate
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.singa import find_pickle
from singanet.checkpoint.streaming import as_bools, bytes_of, check_digest, read_bytes
from singanet.checkpoint.version import KEY, REWRITTEN, check_version
from singanet.data.pickles import RAW, Pickled, StoredText, pieces, recognise, run_program, text
from singanet.errors import FileFormatError, UnsafeFileError
from singanet.types import Array

VERSION_KEY = "SINGA_VERSION"
MOST_STEPS = 500_000
"""Steps of the longest program; a state of 20,000 arrays needs fewer."""
START = b"\x80\x02}"
"""How our files begin, before the text of a key; Python's picklers memoize the dict first."""
NAMES, CHECKSUMS = "singanet_names", "singanet_checksums"


class PickleReader(StreamReader):
    """The arrays of a pickled dict; nothing in the file is imported, called or built."""

    format = "pickle"

    def __init__(self, path: Path) -> None:
        self._arrays: dict[str, Pickled] = {}
        super().__init__(find_pickle(path))

    def _list(self) -> None:
        budget = Budget(self._size, self._damaged, MOST_STEPS)
        found = run_program(self._stream, self._size, budget, self._unsafe)
        if type(found) is not dict:
            raise self._damaged("a dict from names to arrays", type(found).__name__)
        try:
            items = {text(key): value for key, value in found.items()}
        except TypeError:
            raise self._damaged("names that are strings", "other keys") from None
        singa, mark = items.pop(VERSION_KEY, None), items.pop(KEY, None)
        names = _texts(items.pop(NAMES, {}), budget)
        checksums = _texts(items.pop(CHECKSUMS, {}), budget)
        ours = mark is not None and self._begins_as_ours()
        if mark is not None:
            self.version = f"singanet format {check_version(mark, self.where)}"
            self.version += "" if ours else REWRITTEN
        else:
            known = singa if isinstance(singa, int) else "of unknown version"
            self.version = f"SINGA {known}"
        for key, value in items.items():
            name = check_name(names.get(key, key), self.where)
            if name in self.entries:
                raise duplicate(name, self.where)
            array = self._array(name, value)
            dtype = array.dtype.newbyteorder("<")
            checksum = checksums.get(key, "none") if ours else ""
            self.entries[name] = Entry(name, array.shape, dtype, array.stored, checksum)
            self._arrays[name] = array
        if sum(array.stored for array in self._arrays.values() if array.stored > 8) > self._size:
            raise self._unsafe(f"at most {self._size} bytes of arrays", "arrays that share them")

    def _begins_as_ours(self) -> bool:
        """Whether we wrote the file, and not another program that has read our marks."""
        self._stream.seek(0)
        begin = self._stream.read(len(START) + 1)
        return begin[:-1] == START and begin[-1:] in (b"U", b"X")

    def _array(self, name: str, value: Any) -> Pickled:
        def refuse(expected: str, received: str) -> FileFormatError:
            return FileFormatError(
                f"{self.where}, array {name!r}",
                expected=expected,
                received=received,
                advice="remove it from the dict before pickling, or use safetensors or npz",
            )

        def unsafe(expected: str, received: str) -> UnsafeFileError:
            return self._unsafe(expected, received, f", array {name!r}")

        if not isinstance(value, (int, float)):
            return recognise(value, self._size, refuse, unsafe)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise refuse("numbers of up to 64 bits", "one of more")
        array = np.array(value)
        dtype = array.dtype.newbyteorder("<")
        return Pickled((), dtype, False, array.astype(dtype).tobytes())

    def _read(self, entry: Entry) -> Array:
        pickled = self._arrays[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        flat = np.empty(entry.nbytes // entry.dtype.itemsize, pickled.dtype)
        digest = self._fill(bytes_of(flat), pickled.data, where)
        check_digest(entry, digest, self.where)
        order = "F" if pickled.fortran_order else "C"
        array = as_bools(flat).reshape(entry.shape, order=order)  # type: ignore[call-overload]
        return np.asarray(array, dtype=entry.dtype, order="C")

    def _fill(self, out: memoryview, data: bytes | StoredText, where: str) -> bytes:
        if isinstance(data, StoredText) and data.coding == RAW and data.size == len(out):
            self._stream.seek(data.offset)
            return read_bytes(self._stream, out, self._beside, where)
        checksum, filled = Checksum(), 0
        try:
            parts = pieces(self._stream, data) if isinstance(data, StoredText) else [data]
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

    def _unsafe(self, expected: str, received: str, within: str = "") -> UnsafeFileError:
        return UnsafeFileError(
            self.where + within,
            expected=expected,
            received=received,
            advice="do not load it; ask its author for safetensors or npz",
        )

    def _damaged(self, expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=expected,
            received=received,
            advice="the file is damaged, or holds more than weights: write it again",
        )


def _texts(value: Any, budget: Budget) -> dict[str, str]:
    """A dict of our own from text to text; whatever else stands there is left out."""
    texts = {}
    for key, item in value.items() if type(value) is dict else ():
        if isinstance(key, (str, bytes)) and isinstance(item, (str, bytes)):
            budget.spend(len(key) + len(item))  # decoded once more each time it is named
            texts[text(key)] = text(item)
    return texts
