"""Named arrays of an ``.npz`` archive; every claim of size is checked before it is believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from singanet.base.kinds import ARRAYS, ZIP, kind_of_stream
from singanet.data.archive import open_archive, zip_errors
from singanet.data.magic import open_data_file
from singanet.data.npy import NpyHeader, read_npy_header
from singanet.errors import DataError, one_of
from singanet.types import Array

if TYPE_CHECKING:
    import zipfile

DEFAULT_MAX_BYTES = 8 << 30
# Deflate cannot expand further than this, so a larger claim is a lie.
_LARGEST_RATIO = 1032


def read_npz(
    path: str | Path, names: Sequence[str], max_bytes: int = DEFAULT_MAX_BYTES
) -> dict[str, Array]:
    """The arrays ``names`` of the archive at ``path``; others in it are left unread.

    ``max_bytes`` bounds the arrays' memory, elements counted as at least four bytes because
    they become float32. Errors: `DataError` naming the file and the array.
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
                received=f"a broken one ({received})" if "zip" in expected else received,
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
    arrays = {}
    for name, info in zip(names, members, strict=True):
        with archive.open(info) as member:
            arrays[name] = _read_array(member, headers[name], f"{where}, array {name!r}")
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


def _read_array(member: IO[bytes], header: NpyHeader, where: str) -> Array:
    member.read(header.size_in_file)
    flat = np.empty(header.nbytes, np.uint8)
    filled = 0
    while filled < header.nbytes:
        # Piece by piece: read(n) of a whole array would hold it twice.
        piece = member.read(min(1 << 20, header.nbytes - filled))
        if not piece:
            raise EOFError(f"{where} ends after {filled} of {header.nbytes} bytes")
        flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
    member.read(1)  # the end of the member is where its checksum is compared
    array = flat.view(header.dtype)
    return array.reshape(header.shape, order="F" if header.fortran_order else "C")
