"""One dataset, its bytes written and read beside libhdf5, which holds Python's lock."""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np

from singanet.checkpoint.bfloat import widen
from singanet.checkpoint.checksum import Beside
from singanet.checkpoint.hdf5.guard import check_dataset
from singanet.checkpoint.streaming import as_bools, bytes_of, check_shape, read_bytes, write_bytes
from singanet.errors import FileFormatError
from singanet.types import Array, Shape

_KINDS = "biuf"
_BFLOAT = np.dtype("V2")


def create(group: Any, path: str, shape: Shape, dtype: np.dtype[Any]) -> Any:
    """A contiguous dataset whose place in the file is fixed at once and not yet filled."""
    import h5py

    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if math.prod(shape):
        plist.set_layout(h5py.h5d.CONTIGUOUS)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    kind = h5py.h5t.py_create(dtype, logical=True)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.Dataset(h5py.h5d.create(group.id, path.encode(), kind, space, plist, links))


def fill(dataset: Any, array: Array, raw: BinaryIO, beside: Beside) -> bytes:
    """Write ``array`` through ``raw``, the same file opened once more; return the checksum."""
    offset = dataset.id.get_offset()
    if array.size and offset is not None:
        raw.seek(offset)
    return write_bytes(raw, bytes_of(array), beside)


def described(dataset: Any, where: str) -> tuple[Shape, np.dtype[Any]]:
    """Shape and type of the array a dataset gives. Errors: a type or claim we do not take."""
    dtype = dataset.dtype
    if dtype.kind not in _KINDS and not is_bfloat(dataset):
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
    check_dataset(dataset, math.prod(shape) * dtype.itemsize, where)
    return shape, np.dtype("<f4") if is_bfloat(dataset) else dtype.newbyteorder("<")


def is_bfloat(dataset: Any) -> bool:
    """Whether these are bfloat16 numbers, as Keras stores them."""
    # The attribute's text itself is of variable length, which libhdf5 reads without due care.
    return dataset.dtype == _BFLOAT and "dtype" in dataset.attrs


def load(
    dataset: Any, dtype: np.dtype[Any], raw: BinaryIO, size: int, beside: Beside, where: str
) -> tuple[Array, bytes]:
    """The array, and the checksum of its bytes where they were read as they stand in the file."""
    if is_bfloat(dataset):
        words = np.empty(dataset.shape, _BFLOAT)
        dataset.read_direct(words)
        return widen(words.view("<u2")), b""
    array = np.empty(dataset.shape, dtype)
    offset = _plain_offset(dataset, dtype)
    if offset is not None and offset + array.nbytes <= size:
        raw.seek(offset)
        digest = read_bytes(raw, bytes_of(array), beside, where)
        return as_bools(array), digest
    if array.size:
        dataset.read_direct(array)
    return array, b""


def _plain_offset(dataset: Any, dtype: np.dtype[Any]) -> int | None:
    """Where the bytes stand, if they stand in one piece and in the form NumPy wants."""
    import h5py

    plain = dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    if not plain or dataset.dtype != dtype:
        return None
    # Two types equal to NumPy may differ in the file, as enumerations of other widths do.
    if dataset.id.get_storage_size() != math.prod(dataset.shape) * dtype.itemsize:
        return None
    offset: int | None = dataset.id.get_offset()
    return offset
