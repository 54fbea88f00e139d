"""NumPy's files (.npy, .npz), read within a budget of memory."""

from __future__ import annotations

import contextlib
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import Budget, Refusal, checked_shape
from singanet.base.kinds import ARRAYS, ZIP, kind_of_stream
from singanet.base.progress import ProgressBar
from singanet.data.image_sets import open_data_file
from singanet.errors import DataError, SingaNetError, one_of
from singanet.types import Array

if TYPE_CHECKING:
    import zipfile


_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[<>|=]?[a-zA-Z]\d*)',"
    rb"\s*'fortran_order':\s*(?P<fortran>True|False),"
    rb"\s*'shape':\s*\((?P<shape>(?:\d{1,18},\s*)*(?:\d{1,18})?)\s*\),?\s*\}\s*"
)


@dataclass(frozen=True)
class NpyHeader:
    """The claims of an array's header: its type, shape and order of elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size_in_file: int

    @property
    def nbytes(self) -> int:
        """The bytes of the array, exact however large the claim is."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(stream: IO[bytes], where: str) -> NpyHeader:
    """Read the header at the start of ``stream``, up to the first element.

    Errors: `DataError` for anything but a plain array of booleans, integers or floats. Object
    arrays are refused, since they are pickles, which can run code.
    """
    start = stream.read(8)
    if len(start) < 8 or not start.startswith(_MAGIC):
        raise _refused(where, "an array that starts with '\\x93NUMPY'", f"{start!r}")
    count = {1: 2, 2: 4}.get(start[6])
    if count is None:
        raise _refused(where, "version 1 or 2 of the .npy format", f"version {start[6]}")
    length = int.from_bytes(stream.read(count), "little")
    text = stream.read(min(length, _LONGEST_HEADER))
    found = _HEADER.fullmatch(text)
    if len(text) != length or found is None:
        if b"'|O" in text or b"'O" in text:
            raise _refused(where, "an array of numbers", "an array of Python objects (a pickle)")
        raise _refused(where, "a header with a plain type and a shape", f"{text[:60]!r}")
    dtype = _plain_dtype(found["descr"].decode("ascii"), where)
    parts = [int(part) for part in found["shape"].split(b",") if part.strip()]
    shape = checked_shape(
        parts, dtype.itemsize, 1 << 62, lambda wanted, received: _refused(where, wanted, received)
    )
    return NpyHeader(dtype, shape, found["fortran"] == b"True", 8 + count + length)


def _plain_dtype(descr: str, where: str) -> np.dtype[Any]:
    kind = descr.lstrip("<>|=")[0]
    if kind == "O":
        raise _refused(where, "an array of numbers", "an array of Python objects (a pickle)")
    try:
        dtype = np.dtype(descr)
    except TypeError:
        raise _refused(where, "an array of numbers", f"the type {descr!r}") from None
    if dtype.kind not in "biuf" or dtype.itemsize == 0:
        raise _refused(where, "booleans, integers or floats", f"the type {descr!r}")
    return dtype


def _refused(where: str, expected: str, received: str) -> DataError:
    return DataError(
        where,
        expected=expected,
        received=received,
        advice="write it again with numpy.savez(path, x_train=..., y_train=..., ...)",
    )


_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LARGEST_TABLE = 8 << 20
_SHORTEST = 46  # bytes of a member's entry in the table, without its name


_MOST_MEMBERS = 100_000
# Bytes of zipfile's object for a member, with its name.
_MEMBER = 700


@contextlib.contextmanager
def zip_errors(refuse: Refusal) -> Iterator[None]:
    """Convert zipfile's errors for a damaged archive into ``refuse``'s error."""
    import zipfile  # here, so that importing singanet stays quick

    try:
        yield
    except SingaNetError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        OSError,
        RuntimeError,
        NotImplementedError,
        ValueError,
        LookupError,
        OverflowError,
    ) as error:
        received = f"{type(error).__name__}: {str(error)[:200]}"
        raise refuse("a whole zip archive", received) from error


def open_archive(stream: IO[bytes], size: int, refuse: Refusal, unsafe: Refusal) -> zipfile.ZipFile:
    """Open the archive in ``stream`` of ``size`` bytes, after checks of its table and claims.

    Errors: ``refuse``'s for a damaged archive; ``unsafe``'s for members that are encrypted, overlap
    or are packed at an impossible ratio.
    """
    import zipfile

    with zip_errors(refuse):
        budget = Budget(size, unsafe, _MOST_MEMBERS)
        _check_end(stream, size, budget, unsafe)
        archive = zipfile.ZipFile(stream)
        for info in archive.infolist():
            budget.spend()
            _check_member(info, unsafe)
        if sum(info.compress_size for info in archive.infolist()) > size:
            raise unsafe(f"at most {size} bytes, packed", "members that share their bytes")
    return archive


def _check_member(info: zipfile.ZipInfo, unsafe: Refusal) -> None:
    name = f"member {info.filename[:200]!r}"
    # Only stored or deflated: other methods can unpack to a million times their size.
    if info.flag_bits & 1 or info.compress_type not in (0, 8):
        raise unsafe("members stored or deflated", f"{name}, compression {info.compress_type}")
    most = info.compress_size
    if info.compress_type:
        most = 64 + _LARGEST_RATIO * info.compress_size
    if info.file_size > most:
        raise unsafe(f"at most {most} bytes", f"{name}, which claims {info.file_size}")


def _check_end(stream: IO[bytes], size: int, budget: Budget, unsafe: Refusal) -> None:
    """Check the record at the end of the file, with the length of the table of members."""
    import zipfile

    stream.seek(max(0, size - _END.size - 0xFFFF))
    tail = stream.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise zipfile.BadZipFile("the end of the archive is missing")
    *_, table, _, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise zipfile.BadZipFile("the end of the archive is cut off")
    locator = tail[at - 20 : at] if at >= 20 else b""
    if locator.startswith(b"PK\6\7"):
        # zipfile reads the record right before the locator, and ignores its offset.
        place = max(0, size - len(tail)) + at - 20 - _END64.size
        if place != int.from_bytes(locator[8:16], "little"):
            raise zipfile.BadZipFile("the last record is elsewhere")
        stream.seek(place)
        table = _END64.unpack(stream.read(_END64.size))[8]
    if table > _LARGEST_TABLE:
        raise unsafe(f"a table of at most {_LARGEST_TABLE} bytes", str(table))
    budget.spend(_MEMBER * (table // _SHORTEST), 0)


DEFAULT_MAX_BYTES = 8 << 30
# Deflate cannot expand further than this, so a larger claim is false.
_LARGEST_RATIO = 1032


def read_npz(
    path: str | Path, names: Sequence[str], max_bytes: int = DEFAULT_MAX_BYTES
) -> dict[str, Array]:
    """Read the arrays ``names`` of the archive at ``path``, and no others.

    Errors: `DataError` naming the file and the array.

    Args:
        path: Path of the ``.npz`` file.
        names: Names of arrays in the file: booleans, integers or floats.
        max_bytes: Int, the most bytes of memory for the arrays, counted with at least four bytes an
            element, since they become float32.
    """
    where = f"data file {str(path)!r}"
    with open_data_file(path) as stream:
        kind = kind_of_stream(stream)
        if kind not in (ARRAYS, ZIP):
            write = "numpy.savez(path, x_train=..., y_train=..., ...) writes an archive"
            raise DataError(
                where,
                expected="an .npz archive of arrays",
                received=kind.name,
                advice=f"{kind.advice}; {write}" if kind.advice else write,
            )

        def broken(expected: str, received: str) -> DataError:
            return DataError(
                where,
                expected="a whole .npz archive" if "zip" in expected else expected,
                received=f"a broken archive ({received})" if "zip" in expected else received,
                advice="copy or write the file again",
            )

        with zip_errors(broken):
            size = stream.seek(0, 2)
            with open_archive(stream, size, broken, broken) as archive:
                return _read_members(archive, names, max_bytes, where)


def _read_members(
    archive: zipfile.ZipFile, names: Sequence[str], max_bytes: int, where: str
) -> dict[str, Array]:
    there = [info.filename.removesuffix(".npy") for info in archive.infolist()]
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            where,
            expected=f"the arrays {one_of(names)}",
            received=f"{one_of(there) or 'an empty archive'}, without {one_of(missing)}",
            advice="give numpy.savez the missing arrays by name",
        )
    twice = [name for name in names if there.count(name) > 1]
    if twice:
        raise DataError(
            where,
            expected="each array once",
            received=f"{one_of(twice)} more than once",
            advice="write the file again",
        )
    members = [archive.infolist()[there.index(name)] for name in names]
    headers = {}
    left = max_bytes
    for name, info in zip(names, members, strict=True):
        with archive.open(info) as member:
            headers[name] = _checked_header(member, info, f"{where}, array {name!r}")
        left -= max(headers[name].nbytes, 4 * headers[name].nbytes // headers[name].dtype.itemsize)
    if left < 0:
        raise DataError(
            where,
            expected=f"arrays that take at most {max_bytes} bytes as float32",
            received=f"{max_bytes - left} bytes",
            advice="pass a larger max_bytes if you trust the file, or split it",
        )
    arrays, total = {}, sum(header.nbytes for header in headers.values())
    with ProgressBar(f"reading {Path(str(archive.filename)).name}", total, nbytes=True) as bar:
        for name, info in zip(names, members, strict=True):
            with archive.open(info) as member:
                arrays[name] = _read_array(member, headers[name], f"{where}, array {name!r}", bar)
    return arrays


def _checked_header(member: IO[bytes], info: zipfile.ZipInfo, where: str) -> NpyHeader:
    header = read_npy_header(member, where)
    claimed = header.size_in_file + header.nbytes
    if claimed != info.file_size or claimed > 64 + _LARGEST_RATIO * info.compress_size:
        raise DataError(
            where,
            expected=f"{claimed} bytes, as its shape {header.shape} of {header.dtype} needs",
            received=f"{info.file_size} bytes, packed into {info.compress_size}",
            advice="the file is damaged or forged: get it again",
        )
    return header


def _read_array(member: IO[bytes], header: NpyHeader, where: str, bar: ProgressBar) -> Array:
    member.read(header.size_in_file)
    flat = np.empty(header.nbytes, np.uint8)
    filled = 0
    while filled < header.nbytes:
        # In pieces: read(n) of a whole array would need twice its memory.
        piece = member.read(min(1 << 20, header.nbytes - filled))
        if not piece:
            raise EOFError(f"{where} ends after {filled} of {header.nbytes} bytes")
        flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        bar.add(len(piece))
    member.read(1)  # zipfile compares the checksum at the end of the member
    array = flat.view(header.dtype)
    return array.reshape(header.shape, order="F" if header.fortran_order else "C")
