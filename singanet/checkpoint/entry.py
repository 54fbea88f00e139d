"""Entries of a checkpoint: names, checksums, versions and values in pieces.

CRC-32 finds every burst of up to 32 bits and, in less than 512 MiB, every two wrong bits; the
exclusive-or finds every odd number of wrong bits. Together that is what CRC-32C promises and
more: 96 bits instead of 32. Python's own CRC-32 takes a core a quarter of a second a GiB; that of
zlib-ng, from the extra ``fast``, gives the same in a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import NAMES, checked_shape, name_trouble
from singanet.base.files import expect_in_folder, explained
from singanet.base.kinds import PUBLISHED, kind_of
from singanet.errors import (
    ArgumentError,
    ChecksumError,
    FileAccessError,
    FileFormatError,
    VersionError,
    one_of,
)
from singanet.types import Array, Shape, StandIn

MAX_ARRAYS = 100_000
"""More arrays than any net has; the bound keeps a hostile file from filling the memory."""


def check_name(name: str, where: str) -> str:
    """``name`` itself, when every format can hold it and no folder could be escaped with it.

    Errors: `FileFormatError` for an empty, overlong or unprintable name, and for a part between
    slashes that is empty, ``.`` or ``..``.
    """
    check_names([name], where)
    return name


def check_names(names: Iterable[str], where: str) -> None:
    """`check_name` of all ``names``."""
    for trouble in filter(None, map(name_trouble, names)):
        raise FileFormatError(
            where,
            expected=NAMES,
            received=trouble,
            advice="rename the parameter, or get the file from a source you trust",
        )


def check_unique(names: Iterable[str], where: str) -> None:
    """Errors: `FileFormatError` for a name used twice or for more than `MAX_ARRAYS` names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise duplicate(name, where)
        seen.add(name)
        if len(seen) > MAX_ARRAYS:
            raise too_many(where)


def duplicate(name: str, where: str) -> FileFormatError:
    """The error for an array name that a file holds twice."""
    return FileFormatError(
        where,
        expected="each name once",
        received=f"{name!r} twice",
        advice="give every parameter a name of its own, or write the file again",
    )


def too_many(where: str) -> FileFormatError:
    """The error for a file with more arrays than we are ready to list."""
    return FileFormatError(
        where,
        expected=f"at most {MAX_ARRAYS} arrays",
        received="more",
        advice="split the state into several files",
    )


_KINDS = "biuf"


@dataclass(frozen=True, slots=True)
class Entry:
    """An array in a file: ``dtype`` is that of the array read, ``stored`` the bytes it takes.

    ``kind`` names the file's type where it is none of NumPy's, such as ``BF16`` or ``Q8_0``.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    stored: int
    checksum: str = ""
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Source:
    """An array to be written; ``fetch`` produces it when its turn comes.

    ``parts``, where given, produces it in runs of rows, for formats that write as they get it.
    ``kind`` says of what type the words are that it produces, where that is none of NumPy's.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    fetch: Callable[[], Array]
    parts: Callable[[], Iterable[Array]] | None = None
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """The array in host memory, C-contiguous and little-endian."""
        return np.asarray(self._fetched(), dtype=self.dtype, order="C").reshape(self.shape)

    def held(self) -> Source:
        """A source of a copy of the array as it is now."""
        # What was fetched may be the live array.
        array = np.array(self.array())
        return replace(self, fetch=lambda: array, parts=None)

    def pieces(self) -> Iterator[Array]:
        """`array` one run of rows after the other, where it comes so or would have to be copied."""
        if self.parts is not None:
            for part in self.parts():
                yield np.asarray(part, dtype=self.dtype, order="C")
            return
        value = self._fetched()
        if value.shape != self.shape or (value.flags.c_contiguous and value.dtype == self.dtype):
            yield np.asarray(value, dtype=self.dtype, order="C").reshape(self.shape)
            return
        for rows in runs_of_rows(self.shape, self.dtype.itemsize):
            yield np.asarray(value[rows], dtype=self.dtype, order="C")

    def _fetched(self) -> Array:
        value = self.fetch()
        expect_values(value, f"array {self.name!r}")
        value = value.get() if hasattr(value, "get") else value
        return np.asarray(value)


def expect_values(value: Any, where: str) -> None:
    """Errors: `ArgumentError` for an array that only stands for the values."""
    if isinstance(value, StandIn):
        raise value.refused(where)


def total_bytes(sources: Iterable[Source]) -> int:
    """Bytes of all arrays of ``sources``."""
    return sum(source.nbytes for source in sources)


RUN = 4 << 20
"""Bytes of a run of rows."""


def runs_of_rows(shape: Shape, itemsize: int) -> Iterator[slice | EllipsisType]:
    """Which rows come together where an array of ``shape`` comes in runs of about `RUN` bytes."""
    if not shape:
        yield ...
        return
    if 0 in shape:
        return  # any number of rows of nothing
    count = max(1, RUN // max(1, math.prod(shape[1:]) * itemsize))
    for start in range(0, shape[0], count):
        yield slice(start, min(start + count, shape[0]))


def run_shape(shape: Shape, rows: slice | EllipsisType) -> Shape:
    """The shape of one of `runs_of_rows`."""
    return (rows.stop - rows.start, *shape[1:]) if isinstance(rows, slice) else shape


State = Mapping[str, Any] | Sequence[Source]
"""A state dict, or sources that produce its arrays one at a time."""


def sources_of(state: State, where: str) -> list[Source]:
    """``state`` as sources, names and types checked. Errors: `ArgumentError`, `FileFormatError`.

    Arrays may be NumPy or CuPy; anything but booleans, integers and floats is refused.
    """
    if isinstance(state, Mapping):
        sources = [_source(name, value, where) for name, value in state.items()]
    else:
        sources = _all_sources(state, where)
    names = [source.name for source in sources]
    check_names(names, where)
    check_unique(names, where)
    return sources


def _all_sources(state: Any, where: str) -> list[Source]:
    sources = list(state) if isinstance(state, Sequence) else [state]
    for source in sources:
        if not isinstance(source, Source):
            raise ArgumentError(
                where,
                expected="a dict from parameter name to array, or a list of Source",
                received=f"{str(source)[:60]!r}, a {type(source).__name__}",
                advice="pass for example dict(zip(net.param_names(), net.param_values()))",
            )
    return sources


def _source(name: Any, value: Any, where: str) -> Source:
    if not isinstance(name, str):
        raise ArgumentError(
            where,
            expected="names that are strings",
            received=repr(name),
            advice="pass a dict from parameter name to array",
        )
    value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
    if value.dtype.kind not in _KINDS:
        raise ArgumentError(
            f"{where}, array {name!r}",
            expected="booleans, integers or floats",
            received=f"the type {value.dtype}",
            advice="convert the array, or leave it out",
        )
    expect_values(value, f"{where}, array {name!r}")
    return Source(name, tuple(value.shape), np.dtype(value.dtype).newbyteorder("<"), lambda: value)


FORMAT_VERSION = 1
"""Raised by one whenever a file written today could not be read by yesterday's library."""

KEY = "singanet_format"
"""The name under which formats with named attributes keep the version."""


REWRITTEN = ", written again by another program"
"""Behind the version of a file whose marks of ours are copies, and whose checksums of others."""


def check_version(found: object, where: str) -> int:
    """``found`` as a version this library knows. Errors: `VersionError` naming both versions."""
    try:
        version = int(str(found))
    except ValueError:
        version = -1
    if not 1 <= version <= FORMAT_VERSION:
        raise VersionError(
            where,
            expected=f"format version 1 to {FORMAT_VERSION}, which this singanet knows",
            received=f"format version {str(found)[:40]}",
            advice="update singanet, or convert the file with the newer one"
            if version > FORMAT_VERSION
            else "the file is damaged: get it again",
        )
    return version


# Up to so many bytes are summed at once: handing them to a thread would take longer. Files are read
# in pieces, which the faster sum finds in the cache, and which the slower one is handed.
try:
    from zlib_ng.zlib_ng import crc32

    _AT_ONCE, PIECE = 1 << 20, 1 << 18
except ImportError:
    from zlib import crc32

    _AT_ONCE, PIECE = 1 << 18, 1 << 20

SIZE, CRC_SIZE = 12, 4
"""Bytes of a checksum, and of its CRC-32 at the front; a text has twice as many digits."""
_HOT = 1 << 18
_WORD = np.dtype("<u8")


class Checksum:
    """A running checksum over pieces of any length."""

    __slots__ = ("_crc", "_rest", "_words")

    def __init__(self) -> None:
        self._crc = 0
        self._words = 0
        self._rest = b""

    def update(self, data: memoryview | bytes) -> Checksum:
        """Take in ``data``, contiguous bytes."""
        if self._rest:
            head = data[: 8 - len(self._rest)]
            data = data[len(head) :]
            self._crc = crc32(head, self._crc)
            self._rest += head
            if len(self._rest) < 8:
                return self
            self._words ^= int.from_bytes(self._rest, "little")
            self._rest = b""
        if len(data) <= _HOT:
            self._take(data)
            return self
        data = memoryview(data)
        for start in range(0, len(data), _HOT):
            self._take(data[start : start + _HOT])
        return self

    def _take(self, piece: memoryview | bytes) -> None:
        """Take in ``piece``, which stays in the cache between the two passes over it."""
        self._crc = crc32(piece, self._crc)
        count = len(piece) >> 3
        if count:
            self._words ^= int(np.bitwise_xor.reduce(np.frombuffer(piece, _WORD, count)))
        if len(piece) & 7:
            self._rest = bytes(piece[count << 3 :])

    def digest(self) -> bytes:
        """The checksum so far; a last word that is not full counts as filled with zeros."""
        words = self._words ^ int.from_bytes(self._rest, "little")
        return self._crc.to_bytes(4, "big") + words.to_bytes(8, "big")

    def text(self) -> str:
        """The checksum so far, in hexadecimal digits."""
        return self.digest().hex()


class Beside:
    """One thread that sums checksums while this one reads or writes; both leave Python's lock."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Checksum] | None = None

    def update(self, checksum: Checksum, data: memoryview) -> None:
        """Take ``data`` into ``checksum``, in the order of the calls; see `wait`."""
        if len(data) <= _AT_ONCE and self._last is None:
            checksum.update(data)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "checksum")
        self._last = self._pool.submit(checksum.update, data)

    def wait(self) -> None:
        """Return once everything given so far is summed."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._last = None
        if self._pool is not None:
            self._pool.shutdown()


def bytes_of(array: Array) -> memoryview:
    """The memory of a C-contiguous ``array`` as bytes, without a copy."""
    # memoryview itself cannot cast an empty array.
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def write_bytes(stream: BinaryIO, data: memoryview, beside: Beside) -> bytes:
    """Write all of ``data``; return its checksum, summed while it was written."""
    return write_pieces(stream, [data], beside)


def write_pieces(stream: BinaryIO, pieces: Iterable[memoryview], beside: Beside) -> bytes:
    """`write_bytes` of all ``pieces`` together, each let go before the next one is asked for."""
    checksum = Checksum()
    for data in pieces:
        beside.update(checksum, data)
        left = data
        while left:
            # An unbuffered write may take less than it is given.
            left = left[stream.write(left) :]
        beside.wait()
        del data, left
    return checksum.digest()


def read_bytes(
    stream: BinaryIO,
    data: memoryview,
    beside: Beside,
    where: str,
    before: Checksum | None = None,
) -> bytes:
    """Fill ``data`` from ``stream``; return its checksum, that of what came ``before`` included.

    Errors: `FileFormatError` when the file ends before.
    """
    checksum = before or Checksum()
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        read_exactly(stream, piece, where)
        beside.update(checksum, piece)
    beside.wait()
    return checksum.digest()


def read_exactly(stream: BinaryIO, data: memoryview, where: str) -> None:
    """Fill ``data`` from ``stream``. Errors: `FileFormatError` when the file ends before."""
    left = data
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise truncated(where, f"{len(data)} bytes", f"{len(data) - len(left)} bytes")
        left = left[count:]


def as_bools(array: Array) -> Array:
    """``array`` itself; in one of booleans, every byte that is not 0 becomes True."""
    if array.dtype == np.bool_:
        np.not_equal(array.view(np.uint8), 0, out=array)
    return array


def truncated(where: str, expected: str, received: str) -> FileFormatError:
    """The error for a file that ends too early."""
    return FileFormatError(
        where,
        expected=expected,
        received=f"{received}, then the end of the file",
        advice="the file is truncated: copy it again, or use an earlier checkpoint",
    )


def check_shape(shape: Any, itemsize: int, limit: int, where: str) -> Shape:
    """``shape`` as a tuple, if an array of it needs no more than ``limit`` bytes.

    Errors: `FileFormatError` for negative or too many axes, and for a claim above ``limit``.
    """

    def refuse(expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            where,
            expected=expected,
            received=received,
            advice="the file is damaged or forged: get it again",
        )

    return checked_shape(shape, itemsize, limit, refuse)


def check_digest(entry: Entry, digest: bytes, where: str) -> None:
    """Errors: `ChecksumError` naming the array, unless ``digest`` is the one in the file."""
    if entry.checksum and digest.hex() != entry.checksum:
        raise ChecksumError(
            f"{where}, array {entry.name!r}",
            expected=f"the checksum {entry.checksum}, as it was written",
            received=digest.hex(),
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        )


SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
_WEIGHTS = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of a folder's arrays, by precedence; transformers takes the first of them too."""


def weights_in(folder: Path) -> Path:
    """The file in ``folder`` that has its arrays, or the index of those that do.

    Without one of the usual names it is the only ``.gguf`` file. Errors: `FileAccessError` where
    there is none, or several, and for a link that leads out of the folder.
    """
    with explained(folder, "read"):
        found = [path for name in _WEIGHTS if (path := folder / name).exists()]
        found = found or sorted(folder.glob("*.gguf"))[:20]
    if not found or (len(found) > 1 and found[0].suffix == ".gguf"):
        kind = kind_of(folder)
        has = one_of(path.name for path in found) if found else "none of them"
        raise FileAccessError(
            f"file {str(folder)!r}",
            expected=f"a checkpoint, or a folder with {', '.join(_WEIGHTS)} or one .gguf file",
            received=f"{kind.name} with {has}",
            advice="put the model's arrays there too" if kind is PUBLISHED else kind.advice,
        )
    expect_in_folder(folder, found[0])
    return found[0]
