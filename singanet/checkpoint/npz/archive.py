"""A zip archive opened with suspicion; `.keras` files are read through it as well."""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from singanet.checkpoint.names import MAX_ARRAYS, too_many
from singanet.errors import FileFormatError, SingaNetError, UnsafeFileError

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LARGEST_TABLE = 8 << 20
_LARGEST_RATIO = 1032  # deflate expands no further


@contextlib.contextmanager
def zip_errors(where: str) -> Iterator[None]:
    """Turn what zipfile raises about a damaged archive into `FileFormatError`."""
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
        raise FileFormatError(
            where,
            expected="a whole zip archive",
            received=f"{type(error).__name__}: {str(error)[:200]}",
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        ) from error


def open_archive(stream: BinaryIO, size: int, where: str) -> zipfile.ZipFile:
    """The archive in ``stream`` of ``size`` bytes, its table small enough and its claims true.

    Errors: `FileFormatError` for a damaged one; `UnsafeFileError` for members that are packed
    beyond belief, encrypted, or lie over one another.
    """
    with zip_errors(where):
        _check_end(stream, size, where)
        archive = zipfile.ZipFile(stream)
        members = archive.infolist()
        if len(members) > MAX_ARRAYS:
            raise too_many(where)
        for info in members:
            _check_member(info, where)
        if sum(info.compress_size for info in members) > size:
            raise _unsafe(where, f"at most {size} bytes, packed", "members that share their bytes")
    return archive


def _check_member(info: zipfile.ZipInfo, where: str) -> None:
    where = f"{where}, member {info.filename[:200]!r}"
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _unsafe(where, "members stored or deflated", f"compression {info.compress_type}")
    stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size if stored else 64 + _LARGEST_RATIO * info.compress_size
    if info.file_size > most:
        raise _unsafe(where, f"at most {most} bytes", f"{info.file_size} claimed")


def _check_end(stream: BinaryIO, size: int, where: str) -> None:
    """The record at the end of the file: it says how long the table of members is."""
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
        stream.seek(int.from_bytes(locator[8:16], "little"))
        table = _END64.unpack(stream.read(_END64.size))[8]
    if table > _LARGEST_TABLE:
        raise _unsafe(where, f"a table of at most {_LARGEST_TABLE} bytes", str(table))


def _unsafe(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="the file is forged, or was not written for weights: get it from its source again",
    )
