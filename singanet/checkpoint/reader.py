"""The base classes of readers, and SINGA's file names."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import numpy as np

from singanet.base.arguments import own_errors
from singanet.base.files import explained, path_of, unreachable
from singanet.base.kinds import Kind, kind_of
from singanet.base.progress import progress
from singanet.checkpoint.entry import REWRITTEN, ChecksumThread, Entry, check_name
from singanet.errors import (
    ArgumentError,
    FileAccessError,
    FileFormatError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.types import Array

Self = TypeVar("Self", bound="Reader")
_MOST_NAMES = 100
"""The maximum names of a shared array, each of which may become a copy of it."""


class Reader(ABC):
    """A reader of the file ``path``; nothing is allocated for its arrays before `read`.

    ``entries`` lists them by name in file order, ``version`` names the writer, and ``metadata`` has
    the strings stored with the arrays. Use it in a ``with`` statement.

    Args:
        path: Path of the file.
    """

    format = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = f"{self.format} file {str(path)!r}"
        self.version = ""
        self.metadata: dict[str, str] = {}
        self.entries: dict[str, Entry] = {}
        self._hasher = ChecksumThread()

    @property
    def _foreign_layout(self) -> bool:
        """Return whether names and layouts are Keras', which need the ``layers`` of a net."""
        return False

    @abstractmethod
    def _read(self, entry: Entry) -> Array:
        """Return the array of ``entry`` and verify its checksum, if the file has one."""

    def read(self, name: str) -> Array:
        """Return the array called ``name``, writable and C-contiguous.

        Errors: `UnknownNameError`, `ChecksumError`, `FileFormatError`, `FileAccessError`.
        """
        with explained(self.path, "read"):
            return self._read(self._known(name))

    def pieces(self, name: str) -> Iterator[Array]:
        """Yield the array ``name`` in runs of rows of a few MB, or whole if the format has none.

        The checksum is verified after the last one. Errors: as for `read`.
        """
        try:
            yield from self._pieces(self._known(name))
        except FileAccessError:
            raise
        except OSError as error:
            raise unreachable(self.path, "read", error) from error

    def blocks(self, name: str) -> Array | None:
        """Return the array called ``name`` as ggml blocks: bytes (rows, blocks a row, block bytes).

        `Entry.kind` is the block type. None if it is not a quantized matrix. Errors: as for `read`.
        """
        with explained(self.path, "read"):
            return self._of_blocks(self._known(name))

    def _of_blocks(self, entry: Entry) -> Array | None:
        return None

    def read_into(self, name: str, out: Array) -> None:
        """Read the array called ``name`` into ``out`` by `pieces`, with floats cast to its dtype.

        ``out`` may have any strides, for example a transposed view; after an error its content is
        undefined. Errors: as for `read`; `ShapeError`; `ArgumentError` if ``out`` has an
        incompatible dtype.
        """
        entry = self._known(name)
        if out.shape != entry.shape:
            raise ShapeError(
                f"{self.where}, array {name!r}",
                expected=f"an array of shape {entry.shape} to read into",
                received=str(out.shape),
                advice="transpose or slice the result of read",
            )
        if not np.can_cast(entry.dtype, out.dtype, "same_kind"):
            raise ArgumentError(
                f"{self.where}, array {name!r}",
                expected=f"an array of a dtype to which {entry.dtype} can be cast",
                received=str(out.dtype),
                advice="convert the result of read",
            )
        at = 0
        for piece in self.pieces(name):
            rows = slice(at, at + len(piece)) if piece.ndim else ...
            out[rows] = piece
            at += piece.shape[0] if piece.ndim else 1

    def _share(self, metadata: Mapping[str, str]) -> dict[str, str]:
        """List arrays stored as copies of others, and return the stored array of each.

        ``safetensors.torch.save_model`` writes one array for tensors that share memory; the
        metadata map the other names to it. Our files store all arrays, and their metadata are
        arbitrary strings. Errors: `FileFormatError` for too many names.
        """
        if self.version and not self.version.endswith(REWRITTEN):
            return {}
        shared = {
            check_name(name, self.where): kept
            for name, kept in metadata.items()
            if kept in self.entries and name not in self.entries
        }
        if shared and max(Counter(shared.values()).values()) > _MOST_NAMES:
            raise FileFormatError(
                self.where,
                expected=f"at most {_MOST_NAMES} more names for an array",
                received="more in the metadata",
                advice="the file is damaged or forged: download it again",
            )
        for name, kept in shared.items():
            self.entries[name] = self.entries[kept]._replace(name=name)
        return shared

    def _known(self, name: str) -> Entry:
        if name not in self.entries:
            raise UnknownNameError(
                self.where,
                expected=f"an array among {one_of(self.entries)}",
                received=brief(name),
                advice=did_you_mean(name, self.entries, "list them with singanet inspect"),
            )
        return self.entries[name]

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        yield self._read(entry)

    def _filled(self, entry: Entry) -> Array:
        """Return the array from `_pieces`, for formats that have them."""
        array = np.empty(entry.shape, entry.dtype)
        flat, at = array.reshape(-1), 0
        for piece in self._pieces(entry):
            flat[at : at + piece.size] = piece.reshape(-1)
            at += piece.size
        return array

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """Yield each name with its array, one at a time."""
        for name in self.entries:
            yield name, self.read(name)

    def _names_in_turn(self) -> Iterator[str]:
        """Yield the name of each array, to read it before the next; a bar counts their bytes."""
        sizes = {name: entry.nbytes for name, entry in self.entries.items()}
        title = f"reading {self.path.name}"
        return progress(sizes, title, sum(sizes.values()), sizes.__getitem__)

    def _verify_array(self, name: str) -> None:
        """Read the array called ``name`` by `pieces` and drop it. Errors: as for `read`."""
        for piece in self.pieces(name):
            del piece

    def close(self) -> None:
        """Close the file."""
        self._hasher.__exit__(None, None, None)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class StreamReader(Reader):
    """A reader of one open file; a subclass reads its table in `_list`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stream = open_file(path)
        try:
            with explained(path, "read"), own_errors(self._broken, "a table of arrays"):
                self._size = os.fstat(self._stream.fileno()).st_size
                self._list()
        except BaseException:
            self.close()
            raise

    def _broken(self, expected: str, received: str) -> FileFormatError:
        advice = "the file is damaged: copy it again, or use an earlier checkpoint"
        return FileFormatError(self.where, expected=expected, received=received, advice=advice)

    @abstractmethod
    def _list(self) -> None:
        """Set ``entries``, ``version`` and ``metadata``."""

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._stream.close()


_BUFFER = 1 << 18
"""Bytes that are read ahead: small arrays and a table are read together."""


def open_file(path: Path, ahead: int = _BUFFER) -> BinaryIO:
    """Open ``path`` to read bytes, ``ahead`` of them at a time. Errors: `FileAccessError`."""
    with explained(path, "read"):
        if not path.is_file() and path.exists():
            folder = path.is_dir()
            kind = kind_of(path) if folder else Kind("a device or pipe, which may never end")
            raise FileAccessError(
                f"file {str(path)!r}",
                expected="a checkpoint file",
                received=kind.name,
                advice=kind.advice or "pass the path of a file",
            )
        return path.open("rb", buffering=ahead)


def record_path(path: str | os.PathLike[str]) -> Path:
    """Return the ``.bin`` for a prefix, a ``.bin``, a ``.desc`` or a 1.0.0 ``.model``."""
    text = str(path_of(path))
    if text.endswith((".bin", ".model")):
        return Path(text)
    return Path(text.removesuffix(".desc") + ".bin")


def find_records(path: Path) -> Path:
    """Return the file of records for ``path``: itself, or with ``.bin``, or with ``.model``."""
    prefix = str(path).removesuffix(".desc")
    candidates = [Path(prefix), Path(prefix + ".bin"), Path(prefix + ".model")]
    return next((each for each in candidates if each.is_file()), path)


def pickle_path(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` with SINGA's suffix."""
    text = str(path_of(path))
    return Path(text if text.endswith((".pickle", ".pkl")) else text + ".pickle")


def find_pickle(path: Path) -> Path:
    """Return ``path``, with or without ``.pickle``, whichever exists."""
    name = str(path)
    for candidate in (name, f"{name}.pickle", name.removesuffix(".pickle")):
        if Path(candidate).is_file():
            return Path(candidate)
    return path


def record_keys(names: Sequence[str]) -> dict[str, str]:
    """Return the key of each name: the last slash becomes ``_`` unless two names would clash."""
    keys = {name: "_".join(name.rsplit("/", 1)) for name in names}
    uses: dict[str, int] = {}
    for key in [*keys.values(), *names]:
        uses[key] = uses.get(key, 0) + 1
    return {
        name: name if uses[key] > (2 if key == name else 1) else key for name, key in keys.items()
    }
