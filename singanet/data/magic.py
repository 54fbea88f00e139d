"""The real kind of a data file: by its first bytes, and by its published checksum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from singanet.errors import DataError

_KNOWN = (
    (b"\x93NUMPY", "a single .npy array"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x80", "a Python pickle"),
    (b"\x00\x00\x08\x01", "IDX labels"),
    (b"\x00\x00\x08\x03", "IDX images"),
)


def describe(start: bytes) -> str:
    """A name for the kind of file that begins with ``start``."""
    if not start:
        return "an empty file"
    for magic, name in _KNOWN:
        if start.startswith(magic):
            return name
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return f"text that begins {start[:16].decode('ascii')!r}"
    return f"a file that begins with the bytes {start[:8].hex(' ')}"


def open_data_file(path: str | Path) -> IO[bytes]:
    """``path`` opened for reading bytes. Errors: `DataError` where it is no readable file."""
    try:
        found = Path(path)
        if found.is_file():
            return found.open("rb")
        received = "a folder" if found.is_dir() else "no such file"
    except (OSError, ValueError) as error:
        received = str(error)
    raise DataError(
        f"data file {str(path)!r}",
        expected="a readable file",
        received=received,
        advice="check the path",
    )


def check_md5(path: str | Path, published: Sequence[str], advice: str) -> None:
    """Nothing, where the file has one of the published MD5s. Errors: `DataError` with them.

    MD5 is what the publishers give: it finds a damaged copy, not one forged with care.
    """
    import hashlib  # here, so that importing singanet stays quick

    digest = hashlib.md5(usedforsecurity=False)
    with open_data_file(path) as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() not in published:
        raise DataError(
            f"data file {str(path)!r}",
            expected=f"MD5 {' or '.join(published)}, as published",
            received=digest.hexdigest(),
            advice=advice,
        )
