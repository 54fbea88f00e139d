"""Zip archives opened with suspicion: of data sets, checkpoints and Keras' models."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from singanet.base.budget import Budget, Refusal
from singanet.errors import SingaNetError

if TYPE_CHECKING:
    import zipfile

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LARGEST_TABLE = 8 << 20
_SHORTEST = 46  # bytes of a member's entry in the table, beside its name
_LARGEST_RATIO = 1032  # deflate expands no further


_MOST_MEMBERS = 100_000
# zipfile's own object for a member, with its name.
_MEMBER = 700


@contextlib.contextmanager
def zip_errors(refuse: Refusal) -> Iterator[None]:
    """Turn what zipfile raises about a damaged archive into ``refuse``'s error."""
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
    """The archive in ``stream`` of ``size`` bytes, its table small enough and its claims true.

    Errors: ``refuse``'s for a damaged one; ``unsafe``'s for members that are packed beyond belief,
    encrypted, or lie over one another.
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
    # Stored or deflated; other methods can unpack to a million times their size.
    if info.flag_bits & 1 or info.compress_type not in (0, 8):
        raise unsafe("members stored or deflated", f"{name}, compression {info.compress_type}")
    most = info.compress_size
    if info.compress_type:
        most = 64 + _LARGEST_RATIO * info.compress_size
    if info.file_size > most:
        raise unsafe(f"at most {most} bytes", f"{name}, which claims {info.file_size}")


def _check_end(stream: IO[bytes], size: int, budget: Budget, unsafe: Refusal) -> None:
    """The record at the end of the file: it says how long the table of members is."""
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
        # zipfile reads the record right before the locator, wherever that points.
        place = max(0, size - len(tail)) + at - 20 - _END64.size
        if place != int.from_bytes(locator[8:16], "little"):
            raise zipfile.BadZipFile("the last record lies elsewhere")
        stream.seek(place)
        table = _END64.unpack(stream.read(_END64.size))[8]
    if table > _LARGEST_TABLE:
        raise unsafe(f"a table of at most {_LARGEST_TABLE} bytes", str(table))
    budget.spend(_MEMBER * (table // _SHORTEST), 0)
