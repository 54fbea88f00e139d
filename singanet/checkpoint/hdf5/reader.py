"""Reading HDF5 files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from singanet.checkpoint.checksum import Checksum
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.hdf5.dataset import Stored, load, look_through
from singanet.checkpoint.hdf5.guard import attribute, hdf5_errors
from singanet.checkpoint.hdf5.keras_marks import is_legacy
from singanet.checkpoint.hdf5.walk import walk
from singanet.checkpoint.names import MAX_ARRAYS, duplicate, too_many
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.streaming import bytes_of, check_digest
from singanet.checkpoint.version import KEY, check_version
from singanet.errors import ChecksumError, FileFormatError
from singanet.types import Array

_KERAS_PATH = re.compile(r"(layers|_layer_checkpoint_dependencies)/.*vars/\d+$")
MARK = "singanet"
"""The attribute of each of our arrays: its number and its checksum."""


class Hdf5Reader(StreamReader):
    """Every dataset of the file under its path; ours in the order in which they were written."""

    format = "hdf5"

    def __init__(self, path: Path) -> None:
        self._file: Any = None
        self._datasets: dict[str, Stored] = {}
        super().__init__(path)

    def _list(self) -> None:
        import h5py

        with hdf5_errors(self.where):
            self._file = h5py.File(self.path, "r")
            # Behind a user block, offsets in the file are not those libhdf5 tells.
            self._plain_size = 0 if self._file.userblock_size else self._size
            root = self._file.id
            version = attribute(root, KEY, self.where)
            if version is not None:
                self.version = f"singanet format {check_version(version, self.where)}"
            order: list[tuple[int, Entry]] = []

            def found(name: str, dataset: Any) -> None:
                if len(order) >= MAX_ARRAYS:
                    raise too_many(self.where)
                if name in self._datasets:
                    raise duplicate(name, self.where)
                stored = look_through(dataset, f"{self.where}, array {name!r}")
                self._datasets[name] = stored
                index, checksum = MAX_ARRAYS, ""
                mark = None if version is None else attribute(dataset, MARK, self.where)
                if mark is not None:
                    number, _, checksum = str(mark).partition(" ")
                    index = int(number)
                entry = Entry(name, stored.shape, stored.dtype, stored.size, checksum)
                order.append((index, entry))

            walk(root, found, self.where)
            if version is not None:
                # Other programs may have added some, and deleted marks of those that they changed.
                added = sum(index == MAX_ARRAYS for index, _ in order)
                count = int(attribute(root, "count", self.where))
                if len(order) - added > count or len(order) < count:
                    raise self._other_count(count, len(order) - added)
            self.entries = {entry.name: entry for _, entry in sorted(order, key=_index)}

    @property
    def foreign_layout(self) -> bool:
        """Whether this is a file of Keras' weights, current or legacy."""
        with hdf5_errors(self.where):
            return is_legacy(self._file) or any(map(_KERAS_PATH.match, self.entries))

    def _other_count(self, count: int, received: int) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=f"{count} arrays, as many as were written",
            received=str(received),
            advice="the file is damaged: copy it again, or use an earlier checkpoint; where a"
            " program has deleted arrays, let it delete the attribute 'singanet_format', too",
        )

    def _read(self, entry: Entry) -> Array:
        where = f"{self.where}, array {entry.name!r}"
        with hdf5_errors(where):
            stored = self._datasets[entry.name]
            array, digest = load(stored, self._stream, self._plain_size, self._beside, where)
            if entry.checksum:
                digest = digest or Checksum().update(bytes_of(array)).digest()
                try:
                    check_digest(entry, digest, self.where)
                except ChecksumError as error:
                    raise error.advising(
                        f"{error.advice}; where a program has changed the array, let it delete the"
                        f" array's attribute {MARK!r}, too"
                    ) from None
        return array

    def close(self) -> None:
        """Let go of the file."""
        super().close()
        self._datasets.clear()
        if self._file is not None:
            with hdf5_errors(self.where):
                self._file.close()


def _index(item: tuple[int, Entry]) -> int:
    return item[0]
