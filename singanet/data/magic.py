"""Opening a data file, and its published checksum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from singanet.base.files import path_of
from singanet.errors import DataError


def open_data_file(path: str | Path) -> IO[bytes]:
    """``path`` opened for reading bytes. Errors: `DataError` where it is no readable file."""
    try:
        found = path_of(path)
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
