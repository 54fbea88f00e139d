"""Generations of a file of parameters, and the files of passes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from singanet.base.files import explained
from singanet.checkpoint import Entry
from singanet.checkpoint.entry import read_exactly
from singanet.checkpoint.safetensors import LONGEST, broken, header, parse, table
from singanet.errors import ArgumentError

MARK = "singanet offload"
"""The key in the metadata of the files, with the number of their form."""
FORM = "1"


class PlacedFile:
    """Bytes at places of an open ``file``, unbuffered, which errors call ``path``.

    Several threads may read and write.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.raw = path, file
        self._lock = threading.Lock()

    def read(self, at: int, out: memoryview) -> None:
        """Fill ``out`` from byte ``at`` on."""
        with self._lock, explained(self.path, "read"):
            self.raw.seek(at)
            read_exactly(self.raw, out, str(self.path))

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` from byte ``at`` on."""
        with self._lock, explained(self.path, "write"):
            self.raw.seek(at)
            written = 0
            while written < len(data):
                written += self.raw.write(data[written:])


class Generation:
    """The arrays of ``entries``, at their places in the safetensors file at ``path``.

    Some of them consist of parts, row after row; ``units`` are these parts and all other arrays,
    with a place each. ``behind`` names the units that have no values here, or later ones in the
    other generation. Several threads may read and write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.units: dict[str, Entry] = {}
        self.behind: set[str] = set()
        self._parts: Mapping[str, Sequence[Entry]] = {}
        self._offsets: dict[str, int] = {}
        with explained(path, "write"):
            file = path.open("r+b" if path.exists() else "x+b", buffering=0)
        self._file = PlacedFile(path, file)

    @classmethod
    def opened(cls, path: Path) -> Generation:
        """Open the existing file at ``path``. Errors: `FileFormatError` for another kind."""
        made = cls(path)
        try:
            made._read_table()
        except BaseException:
            made.close()
            raise
        return made

    def _read_table(self) -> None:
        path = self.path
        where = f"offloaded net {str(path)!r}"
        size = path.stat().st_size
        file = self._file.raw
        length = int.from_bytes(file.read(8), "little")
        if length > min(LONGEST, size - 8):
            raise broken(where, "a table at the start", f"{size} bytes in all")
        metadata, found = parse(file.read(length), size - 8 - length, where)
        if metadata.get(MARK) != FORM:
            raise broken(where, f"a file of form {FORM} by net.offload", f"{metadata}"[:80])
        self.entries = {entry.name: entry for _, entry in found}
        self._offsets = {entry.name: 8 + length + offset for offset, entry in found}
        self.divide({})

    def divide(self, parts: Mapping[str, Sequence[Entry]]) -> None:
        """Let arrays consist of these ``parts``, by their names, and no others of any."""
        wholes = {part.name: name for name, each in self._parts.items() for part in each}
        behind = {wholes.get(name, name) for name in self.behind}
        self._parts, self.units, self.behind = parts, {}, set()
        for name, entry in self.entries.items():
            at = self._offsets[name]
            for unit in parts.get(name, [entry]):
                self.units[unit.name], self._offsets[unit.name] = unit, at
                at += unit.nbytes
                if name in behind:
                    self.behind.add(unit.name)

    def lay_out(self, entries: Iterable[Entry]) -> None:
        """Allocate places for ``entries``, empty ones if they differ from before.

        The space is allocated at once, so that a full disk fails now or never. Errors:
        `FileAccessError`; `ArgumentError` for a table that is too long.
        """
        wanted = {entry.name: entry for entry in entries}
        if wanted == self.entries:
            return
        ordered = sorted(wanted.values(), key=lambda entry: -entry.dtype.itemsize)
        start = header({MARK: FORM}, table(list(wanted.values()), ordered))
        if len(start) > LONGEST:
            raise ArgumentError(
                "net.offload",
                expected=f"a table of names and shapes of at most {LONGEST} bytes",
                received=str(len(start)),
                advice="shorten the names of the layers",
            )
        end, offsets = len(start), {}
        for entry in ordered:
            offsets[entry.name] = end
            end += entry.nbytes
        self.entries, self.behind = {}, set()
        with explained(self.path, "write"):
            os.ftruncate(self._file.raw.fileno(), end)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.raw.fileno(), 0, end)
        self._file.write(0, memoryview(start))
        self.entries, self._offsets, self.behind = wanted, offsets, set(wanted)
        self.divide(self._parts)

    def read(self, name: str, out: memoryview, start: int = 0) -> None:
        """Fill ``out`` with the bytes of an array, from byte ``start`` of it on."""
        self._file.read(self._offsets[name] + start, out)

    def write(self, name: str, data: memoryview, start: int = 0) -> None:
        """Write bytes of an array, from byte ``start`` of it on."""
        at = self._offsets[name] + start
        self._file.write(at, data)
        if hasattr(os, "posix_fadvise"):
            # Linux starts to write the pages to the disk, so a later flush waits less.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.raw.fileno(), at, len(data), os.POSIX_FADV_DONTNEED)

    def flush(self) -> None:
        """Flush all writes to the disk."""
        with explained(self.path, "write"):
            getattr(os, "fdatasync", os.fsync)(self._file.raw.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.raw.close()


class PassFile(PlacedFile):
    """A file of ``folder`` for the arrays of one pass.

    The system removes it with the process: it has no name, or, on Windows, is open for removal.
    """

    def __init__(self, folder: Path) -> None:
        with explained(folder, "write"):
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        super().__init__(folder, file)
        self.close = weakref.finalize(self, file.close)
