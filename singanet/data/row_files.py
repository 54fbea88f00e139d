"""Rows of an array in a file, read when they are indexed."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from singanet.data.image_sets import open_data_file
from singanet.data.npz_files import read_npy_header
from singanet.errors import DataError, FileAccessError
from singanet.types import Array, Shape

IN_MEMORY = 64 << 20
"""The most bytes of rows that `RowWriter` keeps in memory."""
_BLOCK = 8 << 20
"""The most bytes of a block of `RowFile.blocks`."""


class RowFile:
    """An array in a file whose rows are read when they are indexed, by an array or a slice.

    It reads, and does not map, the file: mapped pages would stay in the memory of the process.
    """

    def __init__(
        self, file: IO[bytes], dtype: np.dtype[Any], shape: Shape, where: str, start: int = 0
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._file, self._start, self._where = file, start, where
        self._row = math.prod(shape[1:]) * dtype.itemsize
        weakref.finalize(self, file.close)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        places = np.asarray(rows)
        if len(places) and (np.diff(places) == 1).all():
            content = self._read(int(places[0]), len(places))
        else:
            content = b"".join([self._read(place, 1) for place in places.tolist()])
        return np.frombuffer(content, self.dtype).reshape(len(places), *self.shape[1:])

    def blocks(self) -> Iterator[Array]:
        """Yield all rows in order, some megabytes at a time."""
        count = max(1, _BLOCK // max(1, self._row))
        for start in range(0, len(self), count):
            yield self[start : start + count]

    def _read(self, row: int, count: int) -> bytes:
        self._file.seek(self._start + row * self._row)
        content = self._file.read(count * self._row)
        if len(content) < count * self._row:
            raise DataError(
                self._where,
                expected=f"{len(self)} rows of {self._row} bytes",
                received=f"the end of the file in row {row + len(content) // self._row}",
                advice="keep the file unchanged while it is read",
            )
        return content


class RowWriter:
    """Collects rows of one shape, in a temporary file from `IN_MEMORY` bytes on."""

    def __init__(self, where: str, dtype: type[Any], shape: Shape) -> None:
        self._where, self._dtype, self._shape = where, np.dtype(dtype), shape
        # Without a buffer, which would read more than a row.
        self._file: Any = tempfile.SpooledTemporaryFile(IN_MEMORY, buffering=0)  # noqa: SIM115
        self._closing = weakref.finalize(self, self._file.close)
        self._count = 0

    def add(self, rows: Array) -> None:
        """Append rows. Errors: `FileAccessError` if the disk is full."""
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        except OSError as error:
            raise FileAccessError(
                self._where,
                expected=f"room for its rows in the folder {tempfile.gettempdir()!r}",
                received=error.strerror or str(error),
                advice="set the environment variable TMPDIR to a folder with more room",
            ) from error
        self._count += len(rows)

    def rows(self) -> RowFile:
        """Return all rows, whose file this writer then leaves to them."""
        self._closing.detach()
        return RowFile(self._file, self._dtype, (self._count, *self._shape), self._where)


class Samples:
    """Samples that are converted from rows when they are indexed by an array.

    Args:
        source: The rows.
        convert: Function of an array of some rows that returns their samples.
        shape: The shape of a sample.
        chosen: The numbers of the rows; None for all.
    """

    def __init__(
        self,
        source: RowFile,
        convert: Callable[[Array], Any],
        shape: Shape,
        chosen: Array | None = None,
    ) -> None:
        self._source, self._convert = source, convert
        self._chosen = np.arange(len(source)) if chosen is None else chosen
        self.shape = (len(self._chosen), *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self._convert(self._source[self._chosen[rows]])

    def subset(self, rows: Array) -> Samples:
        """Return the samples ``rows``, which are not read yet."""
        return Samples(self._source, self._convert, self.shape[1:], self._chosen[rows])


def open_npy(path: str | Path) -> RowFile:
    """Return the array in an ``.npy`` file. Errors: `DataError` for an invalid file."""
    where = f"data file {str(path)!r}"
    stream: Any = open_data_file(path)
    try:
        header = read_npy_header(stream, where)
        size = stream.seek(0, 2) - header.size_in_file
        if size != header.nbytes or not header.shape:
            raise DataError(
                where,
                expected=f"{header.nbytes} bytes for shape {header.shape} of {header.dtype}, with "
                "an axis",
                received=str(size),
                advice="copy or write the file again",
            )
        if header.fortran_order and len(header.shape) > 1:
            raise DataError(
                where,
                expected="rows one after another (C order)",
                received="Fortran order",
                advice="save numpy.ascontiguousarray(x)",
            )
    except BaseException:
        stream.close()
        raise
    # Without the buffer, which would read more than a row.
    file = stream.detach()
    return RowFile(file, header.dtype, header.shape, where, header.size_in_file)
