"""Reading ``.npz`` archives."""

from __future__ import annotations

import re
import zipfile
from typing import IO

import numpy as np

from singanet.checkpoint.checksum import CRC_SIZE, Checksum
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.names import check_name, duplicate
from singanet.checkpoint.npz.archive import open_archive, place_of, zip_errors
from singanet.checkpoint.reader import StreamReader
from singanet.checkpoint.streaming import (
    as_bools,
    bytes_of,
    check_digest,
    check_shape,
    read_bytes,
    truncated,
)
from singanet.checkpoint.version import KEY, check_version
from singanet.data.npy import NpyHeader, read_npy_header
from singanet.errors import DataError, FileFormatError
from singanet.types import Array

_PIECE = 1 << 20
# Members by which other archives show themselves, and what to do with those.
_OTHERS = {
    "model.weights.h5": "build the net of a Keras archive with singanet.keras.load_model",
    "data.pkl": "write the state dict alone: torch.save(module.state_dict(), path)",
}


class NpzReader(StreamReader):
    """Arrays in the order of the archive; the zip's own checksums are compared on reading."""

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
        """The header of a member; where it stands, if what follows are the numbers themselves."""
        if info.compress_type:
            with self._archive.open(info) as member:
                return _header(member, where)
        place = place_of(self._stream, info)
        self._stream.seek(place)
        header = _header(self._stream, where)
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
                    received=f"one with a member {member[:200]!r}",
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
        # The zip's checksum is of the header, too.
        checksum = Checksum().update(self._stream.read(header.size_in_file))
        digest = read_bytes(self._stream, data, self._beside, where, checksum)
        check_digest(entry, digest[:CRC_SIZE], self.where)

    def _unpack(self, entry: Entry, array: Array, where: str) -> None:
        info, header = self._members[entry.name]
        with zip_errors(where), self._archive.open(info) as member:
            member.read(header.size_in_file)
            if not header.fortran_order and header.dtype == entry.dtype:
                _fill(member, bytes_of(array), where)
            else:
                # Piece by piece as well: the array in the file's own order would be a second one.
                stored = (array.T if header.fortran_order else array).flat
                piece = np.empty(_PIECE, header.dtype)
                for start in range(0, array.size, _PIECE):
                    part = piece[: array.size - start]
                    _fill(member, bytes_of(part), where)
                    stored[start : start + len(part)] = part
            member.read(1)  # the end of the member is where its checksum is compared


def _fill(member: IO[bytes], data: memoryview, where: str) -> None:
    filled = 0
    while filled < len(data):
        # read(n) of a whole array would hold it twice.
        piece = member.read(min(_PIECE, len(data) - filled))
        if not piece:
            raise truncated(where, f"{len(data)} bytes", f"{filled}")
        data[filled : filled + len(piece)] = piece
        filled += len(piece)


def _header(member: IO[bytes], where: str) -> NpyHeader:
    try:
        return read_npy_header(member, where)
    except DataError as error:
        raise FileFormatError(
            where,
            expected=error.expected,
            received=error.received,
            advice="write it again with numpy.savez, numbers as array.astype('float32')",
        ) from None
