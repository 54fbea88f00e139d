"""NumPy archives (.npz), read and written."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, BinaryIO

import numpy as np

from singanet.base.files import path_of, replacing
from singanet.checkpoint.entry import (
    CRC_SIZE,
    FORMAT_VERSION,
    KEY,
    MAX_ARRAYS,
    Checksum,
    Entry,
    Source,
    as_bools,
    bytes_of,
    check_digest,
    check_name,
    check_shape,
    check_version,
    duplicate,
    read_bytes,
    too_many,
    total_bytes,
    truncated,
)
from singanet.checkpoint.reader import StreamReader
from singanet.data import npz_files
from singanet.data.npz_files import NpyHeader, read_npy_header
from singanet.errors import DataError, FileFormatError, UnsafeFileError
from singanet.types import Array

_WRITTEN_PIECE = 1 << 22


def write_npz(path: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Write one ``.npy`` member for each array; the archive's comment has the format version.

    Errors: `FileAccessError`.
    """
    nbytes = total_bytes(sources)
    with (
        replacing(path_of(path), nbytes=nbytes) as temporary,
        temporary.open("wb") as stream,
    ):
        archive = zipfile.ZipFile(stream, "w")
        try:
            archive.comment = f"{KEY}={FORMAT_VERSION}".encode()
            for source in sources:
                _write_member(archive, source)
            archive.close()
        except BaseException:
            archive.fp = None  # closing a failed archive would raise another error
            raise


def _write_member(archive: zipfile.ZipFile, source: Source) -> None:
    array = source.array()
    # A fixed date: equal states give equal files.
    info = zipfile.ZipInfo(f"{source.name}.npy", (1980, 1, 1, 0, 0, 0))
    with archive.open(info, "w", force_zip64=array.nbytes >= 1 << 30) as member:
        member.write(_written_header(array))
        data = bytes_of(array)
        for start in range(0, len(data), _WRITTEN_PIECE):
            member.write(data[start : start + _WRITTEN_PIECE])


def _written_header(array: Array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
    return stream.getvalue()


def zip_errors(where: str) -> AbstractContextManager[None]:
    """Turn zipfile's errors about a damaged archive into `FileFormatError`."""
    return npz_files.zip_errors(partial(_damaged, where))


def open_archive(stream: BinaryIO, size: int, where: str) -> zipfile.ZipFile:
    """Open an archive as `archive.open_archive`. Errors: `FileFormatError`, `UnsafeFileError`."""
    return npz_files.open_archive(stream, size, partial(_damaged, where), partial(_forged, where))


def place_of(stream: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return the position in ``stream`` of a member's bytes, after its header and name.

    Raises BadZipFile if header and name differ from the table's.
    """
    stream.seek(info.header_offset)
    head = stream.read(30)
    name = stream.read(int.from_bytes(head[26:28], "little"))
    coding = "utf-8" if info.flag_bits & 0x800 else "cp437"
    if not head.startswith(b"PK\3\4") or name != info.orig_filename.encode(coding, "replace"):
        raise zipfile.BadZipFile(f"no member {info.filename[:200]!r} at its place in the table")
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
        advice="the file is forged, or does not contain weights: download it again",
    )


_READ_PIECE = 1 << 20
# Members that identify other archives, with advice.
_OTHERS = {
    "model.weights.h5": "build the net of a Keras archive with singanet.keras.load_model",
    "data.pkl": "write the state dict alone: torch.save(module.state_dict(), path)",
}


class NpzReader(StreamReader):
    """A reader of the arrays in archive order; reading verifies the zip's checksums."""

    format = "npz"

    def _list(self) -> None:
        self._members: dict[str, tuple[zipfile.ZipInfo, NpyHeader]] = {}
        self._places: dict[str, int] = {}
        archive = self._archive = open_archive(self._stream, self._size, self.where)
        found = re.fullmatch(rb"%s=(\w{1,20})" % KEY.encode(), archive.comment)
        if found:
            self.version = f"singanet format {check_version(found[1].decode(), self.where)}"
        self._expect_arrays(archive.namelist())
        for info in archive.infolist():
            name = check_name(info.filename.removesuffix(".npy"), self.where)
            where = f"{self.where}, array {name!r}"
            if name in self.entries:
                raise duplicate(name, self.where)
            if len(self.entries) >= MAX_ARRAYS:
                raise too_many(self.where)
            with zip_errors(where):
                header = self._look_through(name, info, where)
            self._members[name] = (info, header)
            shape = check_shape(
                header.shape, header.dtype.itemsize, info.file_size - header.size_in_file, where
            )
            if header.nbytes + header.size_in_file != info.file_size:
                raise truncated(where, f"{header.nbytes} bytes", f"{info.file_size} in the member")
            dtype = header.dtype.newbyteorder("<")
            checksum = f"{info.CRC:08x}"
            self.entries[name] = Entry(name, shape, dtype, info.compress_size, checksum)

    def _look_through(self, name: str, info: zipfile.ZipInfo, where: str) -> NpyHeader:
        """Read a member's header; note its position if the elements can be read directly."""
        if info.compress_type:
            with self._archive.open(info) as member:
                return _read_header(member, where)
        place = place_of(self._stream, info)
        self._stream.seek(place)
        header = _read_header(self._stream, where)
        if not header.fortran_order and header.dtype == header.dtype.newbyteorder("<"):
            self._places[name] = place
        return header

    def _expect_arrays(self, members: list[str]) -> None:
        for member in members:
            advice = _OTHERS.get(member.rsplit("/", 1)[-1])
            if advice:
                raise FileFormatError(
                    self.where,
                    expected="an archive of .npy arrays",
                    received=f"an archive with a member {member[:200]!r}",
                    advice=advice,
                )

    def _read(self, entry: Entry) -> Array:
        where = f"{self.where}, array {entry.name!r}"
        array = np.empty(entry.shape, entry.dtype)
        if entry.name in self._places:
            self._read_plain(entry, bytes_of(array), where)
        else:
            self._unpack(entry, array, where)
        return as_bools(array)

    def _read_plain(self, entry: Entry, data: memoryview, where: str) -> None:
        _, header = self._members[entry.name]
        self._stream.seek(self._places[entry.name])
        # The zip's checksum includes the header.
        checksum = Checksum().update(self._stream.read(header.size_in_file))
        digest = read_bytes(self._stream, data, self._hasher, where, checksum)
        check_digest(entry, digest[:CRC_SIZE], self.where)

    def _unpack(self, entry: Entry, array: Array, where: str) -> None:
        info, header = self._members[entry.name]
        with zip_errors(where), self._archive.open(info) as member:
            member.read(header.size_in_file)
            if not header.fortran_order and header.dtype == entry.dtype:
                _fill(member, bytes_of(array), where)
            else:
                # In pieces, since a whole array in the file's order would be a second copy.
                stored = (array.T if header.fortran_order else array).flat
                piece = np.empty(_READ_PIECE, header.dtype)
                for start in range(0, array.size, _READ_PIECE):
                    part = piece[: array.size - start]
                    _fill(member, bytes_of(part), where)
                    stored[start : start + len(part)] = part
            member.read(1)  # zipfile verifies the checksum at the end


def _fill(member: IO[bytes], data: memoryview, where: str) -> None:
    filled = 0
    while filled < len(data):
        # A single read would need memory for the array twice.
        piece = member.read(min(_READ_PIECE, len(data) - filled))
        if not piece:
            raise truncated(where, f"{len(data)} bytes", f"{filled}")
        data[filled : filled + len(piece)] = piece
        filled += len(piece)


def _read_header(member: IO[bytes], where: str) -> NpyHeader:
    try:
        return read_npy_header(member, where)
    except DataError as error:
        raise FileFormatError(
            where,
            expected=error.expected,
            received=error.received,
            advice="write it again with numpy.savez, numbers as array.astype('float32')",
        ) from None
