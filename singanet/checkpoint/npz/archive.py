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
