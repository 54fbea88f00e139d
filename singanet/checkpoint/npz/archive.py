"""Archives of checkpoints: the errors of `singanet.data.archive` as those of checkpoints."""

from __future__ import annotations

import zipfile
from contextlib import AbstractContextManager
from functools import partial
from typing import BinaryIO

from singanet.data import archive
from singanet.errors import FileFormatError, UnsafeFileError


def zip_errors(where: str) -> AbstractContextManager[None]:
    """Turn what zipfile raises about a damaged archive into `FileFormatError`."""
    return archive.zip_errors(partial(_damaged, where))


def open_archive(stream: BinaryIO, size: int, where: str) -> zipfile.ZipFile:
    """`archive.open_archive`. Errors: `FileFormatError`, `UnsafeFileError`."""
    return archive.open_archive(stream, size, partial(_damaged, where), partial(_forged, where))


def place_of(stream: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin in ``stream``: behind its own header and name.

    Raises BadZipFile where these are not those of the table.
    """
    stream.seek(info.header_offset)
    head = stream.read(30)
    name = stream.read(int.from_bytes(head[26:28], "little"))
    coding = "utf-8" if info.flag_bits & 0x800 else "cp437"
    if not head.startswith(b"PK\3\4") or name != info.orig_filename.encode(coding, "replace"):
        raise zipfile.BadZipFile(f"no member {info.filename[:200]!r} where the table has it")
    return info.header_offset + 30 + len(name) + int.from_bytes(head[28:30], "little")


def _damaged(where: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the file is damaged: copy it again, or use an earlier checkpoint",
    )


def _forged(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="the file is forged, or was not written for weights: get it from its source again",
    )
