"""One of the two files of a folder: a safetensors file whose arrays are written in place."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from singanet.base.files import explained
from singanet.checkpoint import Entry
from singanet.checkpoint.safetensors.header import LONGEST, broken, parse
from singanet.checkpoint.safetensors.writer import header
from singanet.checkpoint.streaming import read_exactly
from singanet.errors import ArgumentError

MARK = "singanet offload"
"""The key in the metadata of the files, with the number of their form."""
FORM = "1"


class Generation:
    """The arrays of ``entries``, at their places in the file at ``path``.

    ``behind`` are those of which the other generation has later values, or that have none here.
    Several threads may read and write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.behind: set[str] = set()
        self._offsets: dict[str, int] = {}
        self._lock = threading.Lock()
        with explained(path, "write"):
            self._file = path.open("r+b" if path.exists() else "x+b", buffering=0)

    @classmethod
    def opened(cls, path: Path) -> Generation:
        """The file at ``path`` as it was left. Errors: `FileFormatError` for another kind."""
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
        length = int.from_bytes(self._file.read(8), "little")
        if not 0 < length <= min(LONGEST, size - 8):
            raise broken(where, "a table at the start", f"{size} bytes in all")
        metadata, found = parse(self._file.read(length), size - 8 - length, where)
        if metadata.get(MARK) != FORM:
            raise broken(where, f"a file of form {FORM} by net.offload", f"{metadata}"[:80])
        self.entries = {entry.name: entry for _, _, entry in found}
        self._offsets = {entry.name: 8 + length + offset for offset, _, entry in found}

    def lay_out(self, entries: Iterable[Entry]) -> None:
        """Have places for ``entries``, with nothing in them where they are others than before.

        The space is taken at once, so that a disk is full now or never. Errors:
        `FileAccessError`; `ArgumentError` for a table that is too long.
        """
        wanted = {entry.name: entry for entry in entries}
        if wanted == self.entries:
            return
        ordered = sorted(wanted.values(), key=lambda entry: -entry.dtype.itemsize)
        start = header(list(wanted.values()), ordered, {MARK: FORM})
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
            os.ftruncate(self._file.fileno(), end)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, end)
        self._put(0, memoryview(start))
        self.entries, self._offsets, self.behind = wanted, offsets, set(wanted)

    def read(self, name: str, out: memoryview, start: int = 0) -> None:
        """Fill ``out`` with the bytes of an array, from byte ``start`` of it on."""
        with self._lock, explained(self.path, "read"):
            self._file.seek(self._offsets[name] + start)
            read_exactly(self._file, out, str(self.path))

    def write(self, name: str, data: memoryview, start: int = 0) -> None:
        """Write bytes of an array, from byte ``start`` of it on."""
        at = self._offsets[name] + start
        self._put(at, data)
        if hasattr(os, "posix_fadvise"):
            # Linux begins to bring the pages to the disk, and a later flush waits for less.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), at, len(data), os.POSIX_FADV_DONTNEED)

    def flush(self) -> None:
        """Make durable what was written."""
        with explained(self.path, "write"):
            getattr(os, "fdatasync", os.fsync)(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, at: int, data: memoryview) -> None:
        with self._lock, explained(self.path, "write"):
            self._file.seek(at)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
