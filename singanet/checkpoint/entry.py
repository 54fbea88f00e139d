"""Entries of a checkpoint: names, checksums, versions and pieces of arrays.

CRC-32 detects every burst of up to 32 bits and, below 512 MiB, every pair of wrong bits; the
exclusive-or detects every odd number of wrong bits. Together they detect all that CRC-32C does,
with 96 bits instead of 32. Python's CRC-32 takes a quarter of a second a GiB on one core; zlib-ng,
from the extra ``fast``, takes a tenth of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from singanet.base.arguments import NAMES, are_plain_names, checked_shape, name_trouble
from singanet.base.files import expect_in_folder, explained
from singanet.base.kinds import PUBLISHED, kind_of
from singanet.base.progress import ProgressBar, shows_progress
from singanet.errors import (
    ArgumentError,
    ChecksumError,
    FileAccessError,
    FileFormatError,
    VersionError,
    brief,
    one_of,
)
from singanet.types import Array, Shape, StandIn

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

MAX_ARRAYS = 100_000
"""The maximum number of arrays: more than any net has, and a bound for hostile files."""


def check_name(name: str, where: str) -> str:
    """Return ``name`` if every format can store it and it cannot escape a folder.

    Errors: `FileFormatError` if the name is empty, too long or unprintable, or if a part between
    slashes is empty, ``.`` or ``..``.
    """
    check_names([name], where)
    return name


def check_names(names: Iterable[str], where: str) -> None:
    """Check all ``names`` as `check_name` does."""
    names = list(names)
    if are_plain_names(names):
        return
    for trouble in filter(None, map(name_trouble, names)):
        raise FileFormatError(
            where,
            expected=NAMES,
            received=trouble,
            advice="rename the parameter, or download the file from a source you trust",
        )


def check_unique(names: Iterable[str], where: str) -> None:
    """Errors: `FileFormatError` for a repeated name or more than `MAX_ARRAYS` names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise duplicate(name, where)
        seen.add(name)
        if len(seen) > MAX_ARRAYS:
            raise too_many(where)


def duplicate(name: str, where: str) -> FileFormatError:
    """Return the error for an array name that occurs twice in a file."""
    return FileFormatError(
        where,
        expected="each name once",
        received=f"{name!r} twice",
        advice="give every parameter a distinct name, or write the file again",
    )


def too_many(where: str) -> FileFormatError:
    """Return the error for a file with more than `MAX_ARRAYS` arrays."""
    return FileFormatError(
        where,
        expected=f"at most {MAX_ARRAYS} arrays",
        received="more",
        advice="split the state into several files",
    )


_KINDS = "biuf"


class Entry(NamedTuple):
    """An array in a file: its ``name``, ``shape`` and ``dtype`` in memory.

    ``stored`` is the number of bytes in the file, and ``checksum`` a text, empty if the file has
    none. ``kind`` is the file's type if NumPy has none, such as ``BF16`` or ``Q8_0``.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    stored: int
    checksum: str = ""
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(eq=False, slots=True)
class Source:
    """An array to write as ``name``, of this ``shape`` and ``dtype``.

    ``fetch`` computes it when it is written. ``parts``, if set, yields it in runs of rows, for
    formats that write in pieces. ``kind`` is the type of the words if NumPy has none.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    fetch: Callable[[], Array]
    parts: Callable[[], Iterable[Array]] | None = None
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """Return the array in host memory, C-contiguous and little-endian."""
        return np.asarray(self._fetched(), dtype=self.dtype, order="C").reshape(self.shape)

    def held(self) -> Source:
        """Return a source of a copy of the current array."""
        # ``fetch`` may return the live array.
        array = np.array(self.array())
        return replace(self, fetch=lambda: array, parts=None)

    def pieces(self) -> Iterator[Array]:
        """Yield the array, in runs of rows if ``parts`` is set or a whole one needs a copy."""
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
        if type(value) is np.ndarray:
            return value
        expect_values(value, f"array {self.name!r}")
        value = value.get() if hasattr(value, "get") else value
        return np.asarray(value)


def expect_values(value: Any, where: str) -> None:
    """Errors: `ArgumentError` for a placeholder without values."""
    if isinstance(value, StandIn):
        raise value.refused(where)


def total_bytes(sources: Iterable[Source]) -> int:
    """Return the bytes of all arrays of ``sources``."""
    return sum(source.nbytes for source in sources)


@contextmanager
def counted(sources: Sequence[Source], path: Path) -> Iterator[Sequence[Source]]:
    """Yield ``sources`` to write to ``path``; a bar counts their bytes when they are fetched."""
    if not shows_progress(sys.stderr):
        yield sources
        return
    with ProgressBar(f"writing {path.name}", total_bytes(sources), nbytes=True) as bar:

        def shown(source: Source) -> Source:
            def fetch() -> Array:
                array = source.fetch()
                bar.add(source.nbytes)
                return array

            def parts() -> Iterator[Array]:
                for part in source.parts() if source.parts is not None else ():
                    bar.add(part.nbytes)
                    yield part

            return replace(source, fetch=fetch, parts=None if source.parts is None else parts)

        yield [shown(source) for source in sources]


RUN = 4 << 20
"""The target bytes of a run of rows, or of small arrays."""
SMALL = 1 << 16
"""Bytes up to which calls take as long as an array."""


def runs_of_rows(shape: Shape, itemsize: int) -> Iterator[slice | EllipsisType]:
    """Yield slices of rows of about `RUN` bytes each."""
    if not shape:
        yield ...
        return
    if 0 in shape:
        return  # an empty array has no bytes
    count = max(1, RUN // max(1, math.prod(shape[1:]) * itemsize))
    for start in range(0, shape[0], count):
        yield slice(start, min(start + count, shape[0]))


def run_shape(shape: Shape, rows: slice | EllipsisType) -> Shape:
    """Return the shape of one run of rows."""
    return (rows.stop - rows.start, *shape[1:]) if isinstance(rows, slice) else shape


State = Mapping[str, Any] | Sequence[Source]
"""A state dict, or sources that produce its arrays one at a time."""


def sources_of(state: State, where: str) -> list[Source]:
    """Convert ``state`` to sources with checked names and dtypes.

    Arrays may be NumPy or CuPy, of booleans, integers or floats. Errors: `ArgumentError`,
    `FileFormatError`.
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
            received=brief(name),
            advice="pass a dict from parameter name to array",
        )
    value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
    dtype = np.dtype(value.dtype)
    if dtype.kind not in _KINDS:
        raise ArgumentError(
            f"{where}, array {name!r}",
            expected="booleans, integers or floats",
            received=f"the type {dtype}",
            advice="convert the array, or omit it",
        )
    if type(value) is not np.ndarray:
        expect_values(value, f"{where}, array {name!r}")
    return Source(name, tuple(value.shape), dtype.newbyteorder("<"), lambda: value)


FORMAT_VERSION = 1
"""The version of our files, increased if the previous library could not read a new file."""

KEY = "singanet_format"
"""The key of the version in formats with named attributes."""


REWRITTEN = ", written again by another program"
"""The suffix of the version if another program copied our marks and changed the arrays."""


def check_version(found: object, where: str) -> int:
    """Return ``found`` as a supported version. Errors: `VersionError` naming both versions."""
    try:
        version = int(str(found))
    except ValueError:
        version = -1
    if not 1 <= version <= FORMAT_VERSION:
        raise VersionError(
            where,
            expected=f"format version 1 to {FORMAT_VERSION}, supported by this singanet",
            received=f"format version {str(found)[:40]}",
            advice="update singanet, or convert the file with the newer one"
            if version > FORMAT_VERSION
            else "the file is damaged: download it again",
        )
    return version


# Up to _AT_ONCE bytes are summed in the calling thread, since a handover would take longer. Files
# are read in pieces of PIECE bytes: small enough for the cache with the faster CRC, large enough
# for a handover with the slower one.
try:
    from zlib_ng.zlib_ng import crc32

    _AT_ONCE, PIECE = 1 << 20, 1 << 18
except ImportError:
    from zlib import crc32

    _AT_ONCE, PIECE = 1 << 18, 1 << 20

SIZE, CRC_SIZE = 12, 4
"""The bytes of a checksum and of its leading CRC-32; the text has twice as many digits."""
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
        """Add ``data``, contiguous bytes."""
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
        """Add ``piece``, which stays in the cache between the two passes over it."""
        self._crc = crc32(piece, self._crc)
        count = len(piece) >> 3
        if count:
            self._words ^= int(np.bitwise_xor.reduce(np.frombuffer(piece, _WORD, count)))
        if len(piece) & 7:
            self._rest = bytes(piece[count << 3 :])

    def digest(self) -> bytes:
        """Return the checksum so far; a partial last word is padded with zeros."""
        words = self._words ^ int.from_bytes(self._rest, "little")
        return self._crc.to_bytes(4, "big") + words.to_bytes(8, "big")

    def text(self) -> str:
        """Return the checksum so far, in hexadecimal digits."""
        return self.digest().hex()


def checksum_of(data: memoryview) -> bytes:
    """Return the checksum of ``data``, in a third of `Checksum`'s time if they are few."""
    if not data or len(data) > _HOT or len(data) & 7:
        return Checksum().update(data).digest()
    words = np.bitwise_xor.reduce(np.frombuffer(data, _WORD)).item()
    return crc32(data).to_bytes(4, "big") + words.to_bytes(8, "big")


def checksums_of(data: memoryview, sizes: Sequence[int]) -> list[bytes]:
    """Return the checksums of the parts of ``data``, of these ``sizes``.

    Their words are summed by one call of NumPy, which takes longer than a small part.
    """
    starts = [0, *accumulate(sizes)]
    parts = [data[start:end] for start, end in pairwise(starts)]
    if 0 in sizes or math.gcd(8, *sizes) < 8:
        return [checksum_of(part) for part in parts]
    words = np.frombuffer(data, _WORD)
    found = np.bitwise_xor.reduceat(words, [start >> 3 for start in starts[:-1]]).tolist()
    pairs = zip(map(crc32, parts), found, strict=True)
    return [(crc << 64 | sum_).to_bytes(SIZE, "big") for crc, sum_ in pairs]


Part = TypeVar("Part")


def runs_of_small(parts: Iterable[tuple[Part, int, int]]) -> Iterator[list[Part]]:
    """Yield ``parts`` of a file, (part, place, bytes), in lists to read or write by one call.

    Those up to `SMALL` that follow each other are together, up to `RUN` bytes.
    """
    run: list[Part] = []
    end = total = 0
    for part, place, nbytes in parts:
        if run and (place != end or nbytes > SMALL or total + nbytes > RUN):
            yield run
            run, total = [], 0
        run.append(part)
        end = place + nbytes
        total += nbytes if nbytes <= SMALL else RUN
    if run:
        yield run


class ChecksumThread:
    """A thread that computes checksums while the caller reads or writes; both release the GIL."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Checksum] | None = None

    def update(self, checksum: Checksum, data: memoryview) -> None:
        """Add ``data`` to ``checksum`` after all earlier calls; `wait` waits for the end."""
        if len(data) <= _AT_ONCE and self._last is None:
            checksum.update(data)
            return
        if self._pool is None:
            # A local import: small files need no thread, and it imports logging.
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(1, "checksum")
        self._last = self._pool.submit(checksum.update, data)

    def wait(self) -> None:
        """Wait until all data are added."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> ChecksumThread:
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
    """Return the memory of a C-contiguous ``array`` as bytes, without a copy."""
    # memoryview cannot cast an empty array.
    return array.data.cast("B") if array.size else memoryview(bytearray())


def write_bytes(stream: BinaryIO, data: memoryview, hasher: ChecksumThread) -> bytes:
    """Write ``data`` and return its checksum, computed in parallel."""
    return write_pieces(stream, [data], hasher)


def write_pieces(stream: BinaryIO, pieces: Iterable[memoryview], hasher: ChecksumThread) -> bytes:
    """Write ``pieces`` and return their checksum; each is released before the next is requested."""
    checksum = Checksum()
    for data in pieces:
        hasher.update(checksum, data)
        left = data
        while left:
            # An unbuffered write may take less than it is given.
            left = left[stream.write(left) :]
        hasher.wait()
        del data, left
    return checksum.digest()


def read_bytes(
    stream: BinaryIO,
    data: memoryview,
    hasher: ChecksumThread,
    where: str,
    before: Checksum | None = None,
) -> bytes:
    """Fill ``data`` from ``stream`` and return its checksum, continued from ``before``.

    Errors: `FileFormatError` if the file ends early.
    """
    if len(data) <= PIECE:
        read_exactly(stream, data, where)
        return checksum_of(data) if before is None else before.update(data).digest()
    checksum = before or Checksum()
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        read_exactly(stream, piece, where)
        hasher.update(checksum, piece)
    hasher.wait()
    return checksum.digest()


def read_exactly(stream: BinaryIO, data: memoryview, where: str) -> None:
    """Fill ``data`` from ``stream``. Errors: `FileFormatError` if the file ends early."""
    count = stream.readinto(data)  # type: ignore[attr-defined]
    left = data[count:]
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise truncated(where, f"{len(data)} bytes", f"{len(data) - len(left)} bytes")
        left = left[count:]


def as_bools(array: Array) -> Array:
    """Return ``array``; in a boolean one every non-zero byte becomes True."""
    if array.dtype.kind == "b":
        np.not_equal(array.view(np.uint8), 0, out=array)
    return array


def truncated(where: str, expected: str, received: str) -> FileFormatError:
    """Return the error for a file that ends early."""
    return FileFormatError(
        where,
        expected=expected,
        received=f"{received}, then the end of the file",
        advice="the file is truncated: copy it again, or use an earlier checkpoint",
    )


def check_shape(shape: Any, itemsize: int, limit: int, where: str) -> Shape:
    """Return ``shape`` as a tuple if an array of it takes at most ``limit`` bytes.

    Errors: `FileFormatError` for a negative size, too many axes, or more than ``limit`` bytes.
    """

    def refuse(expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            where,
            expected=expected,
            received=received,
            advice="the file is damaged or forged: download it again",
        )

    return checked_shape(shape, itemsize, limit, refuse)


def check_digest(entry: Entry, digest: bytes, where: str) -> None:
    """Errors: `ChecksumError` naming the array if ``digest`` differs from the file's."""
    if entry.checksum and digest.hex() != entry.checksum:
        raise ChecksumError(
            f"{where}, array {entry.name!r}",
            expected=f"the checksum {entry.checksum} from the file",
            received=digest.hex(),
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        )


SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
_WEIGHTS = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The weight files of a folder by precedence, in the order of transformers."""


def weights_in(folder: Path) -> Path:
    """Return the weight file in ``folder``, or the index of several.

    If no file has a usual name, it is the only ``.gguf`` file. Errors: `FileAccessError` if there
    is none or several, or for a link that leads outside.
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
            advice="add the model's weights to it" if kind is PUBLISHED else kind.advice,
        )
    expect_in_folder(folder, found[0])
    return found[0]
