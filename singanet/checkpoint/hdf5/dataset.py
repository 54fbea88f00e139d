"""One dataset, its bytes written and read beside libhdf5, which holds Python's lock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from singanet.checkpoint.checksum import Beside
from singanet.checkpoint.halves import widen
from singanet.checkpoint.hdf5.guard import check_dataset
from singanet.checkpoint.streaming import (
    as_bools,
    bytes_of,
    check_shape,
    read_bytes,
    write_bytes,
)
from singanet.errors import FileFormatError
from singanet.types import Array, Shape

_KINDS = "biuf"
_BFLOAT = np.dtype("V2")


@dataclass(frozen=True, slots=True)
class Stored:
    """A dataset as it was found, of ``size`` bytes in the file.

    ``offset`` is where its bytes stand in the form NumPy wants.
    """

    id: Any
    shape: Shape
    dtype: np.dtype[Any]
    size: int
    bfloat: bool
    offset: int | None


class Maker:
    """Makes the datasets of one file; what many of them share is made once."""

    def __init__(self, group: Any) -> None:
        import h5py

        self._group = group
        self._empty = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._full = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._full.set_layout(h5py.h5d.CONTIGUOUS)
        self._full.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._full.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        self._links.set_create_intermediate_group(True)
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        self._kinds: dict[np.dtype[Any], Any] = {}

    def create(self, path: str, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """A contiguous dataset whose place in the file is fixed at once and not yet filled."""
        import h5py

        plist = self._full if math.prod(shape) else self._empty
        space = h5py.h5s.create_simple(shape) if shape else self._scalar
        kind = self._kind(dtype)
        return h5py.h5d.create(self._group, path.encode(), kind, space, plist, self._links)

    def mark(self, dataset: Any, name: str, text: str) -> None:
        """Give ``dataset`` an attribute of fixed length: those of variable length are not read."""
        import h5py

        value = np.array(text.encode())
        kind = self._kind(value.dtype)
        h5py.h5a.create(dataset, name.encode(), kind, self._scalar).write(value, kind)

    def _kind(self, dtype: np.dtype[Any]) -> Any:
        import h5py

        if dtype not in self._kinds:
            self._kinds[dtype] = h5py.h5t.py_create(dtype, logical=True)
        return self._kinds[dtype]


def fill(dataset: Any, array: Array, raw: BinaryIO, beside: Beside) -> bytes:
    """Write ``array`` through ``raw``, the same file opened once more; return the checksum."""
    offset = dataset.get_offset()
    if array.size and offset is not None:
        raw.seek(offset)
    return write_bytes(raw, bytes_of(array), beside)


def look_through(dataset: Any, where: str) -> Stored:
    """Shape, type and place of the array that a `DatasetID` gives.

    Errors: `FileFormatError` for a type or claim we do not take.
    """
    dtype = dataset.dtype
    bfloat = dtype == _BFLOAT and _is_bfloat(dataset)
    if dtype.kind not in _KINDS and not bfloat:
        raise FileFormatError(
            where,
            expected="booleans, integers or floats",
            received=f"the type {dtype}",
            advice="remove it from the file, or convert it to numbers",
        )
    # A null dataspace has no shape; h5py reads it as no array at all.
    axes = dataset.shape
    if axes is None:
        raise FileFormatError(
            where,
            expected="an array",
            received="an empty dataspace",
            advice="remove it from the file",
        )
    shape = check_shape(axes, dtype.itemsize, 1 << 60, where)
    nbytes, size = math.prod(shape) * dtype.itemsize, dataset.get_storage_size()
    wanted = np.dtype("<f4") if bfloat else dtype.newbyteorder("<")
    # Only bytes in one piece of the file have an offset, packed or kept elsewhere they have none.
    # Of two types equal to NumPy the file's may be wider, as that of an enumeration.
    offset = dataset.get_offset() if dtype == wanted and size == nbytes else None
    if offset is None:
        check_dataset(dataset, nbytes, size, where)
    return Stored(dataset, shape, wanted, size, bfloat, offset)


def _is_bfloat(dataset: Any) -> bool:
    """Whether these two bytes are bfloat16 numbers, as Keras stores them."""
    import h5py

    # The attribute's text itself is of variable length, which libhdf5 reads without due care.
    return bool(h5py.h5a.exists(dataset, b"dtype"))


def load(
    stored: Stored, raw: BinaryIO, size: int, beside: Beside, where: str
) -> tuple[Array, bytes]:
    """The array, and the checksum of its bytes where they were read as they stand in the file."""
    import h5py

    everything = h5py.h5s.ALL
    if stored.bfloat:
        words = np.empty(stored.shape, _BFLOAT)
        stored.id.read(everything, everything, words)
        return widen(words.view("<u2")), b""
    array = np.empty(stored.shape, stored.dtype)
    if stored.offset is not None and stored.offset + array.nbytes <= size:
        raw.seek(stored.offset)
        digest = read_bytes(raw, bytes_of(array), beside, where)
        return as_bools(array), digest
    if array.size:
        stored.id.read(everything, everything, array)
    return array, b""
