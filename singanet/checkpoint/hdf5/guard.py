"""Errors of libhdf5, and features of it that are refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from singanet.errors import FileFormatError, SingaNetError, UnsafeFileError

# Others would be looked for in a plugin folder and loaded as code.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_LARGEST_RATIO = 1032  # deflate expands no further


@contextlib.contextmanager
def hdf5_errors(where: str) -> Iterator[None]:
    """Turn what h5py raises about a damaged file into `FileFormatError`; Ctrl-C stays itself."""
    try:
        yield
    except SingaNetError:
        raise
    except SystemError as error:
        # An interrupt that struck in a lock of h5py's, at whose end Python finds it.
        raise error.__cause__ or error from None
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        NotImplementedError,
        struct.error,
    ) as error:
        raise FileFormatError(
            where,
            expected="a whole HDF5 file",
            received=f"{type(error).__name__}: {str(error)[:200]}",
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        ) from error


def attribute(item: Any, name: str, where: str) -> Any:
    """The attribute ``name`` of ``item``, an `ObjectID`; a number or text, or None.

    Errors: `FileFormatError` for text of variable length: a damaged heap of such texts sends
    libhdf5 round for ever.
    """
    import h5py

    # h5py's own attrs would look each attribute up three times more.
    raw = name.encode()
    if not h5py.h5a.exists(item, raw):
        return None
    found = h5py.h5a.open(item, raw)
    kind = found.get_type()
    text = kind.get_class() == h5py.h5t.STRING
    number = kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
    # One of it takes just its size; the shape itself would be an object more of libhdf5's.
    one = found.get_storage_size() == kind.get_size()
    if not (number or (text and not kind.is_variable_str())) or not one:
        raise FileFormatError(
            f"{where}, attribute {name!r}",
            expected="one number or text of fixed length",
            received="another type",
            advice="write the file again",
        )
    if text:
        value = np.empty((), f"S{kind.get_size()}")
        found.read(value, kind)  # as it stands there
    else:
        value = np.empty((), found.dtype)
        found.read(value)
    return bytes(value[()]).decode("utf-8", "replace") if text else value[()]


def check_dataset(dataset: Any, nbytes: int, stored: int, where: str) -> None:
    """Look at how libhdf5 would make ``nbytes`` of the ``stored`` ones of a `DatasetID`.

    Errors: `UnsafeFileError` for data kept elsewhere, plugins, and claims without bytes.
    """
    import h5py

    plist = dataset.get_create_plist()
    trouble = ""
    if plist.get_external_count():
        trouble = "data in another file"
    elif plist.get_layout() not in (
        h5py.h5d.COMPACT,
        h5py.h5d.CONTIGUOUS,
        h5py.h5d.CHUNKED,
    ):
        trouble = "a virtual dataset, put together from other files"
    else:
        numbers = [plist.get_filter(index)[0] for index in range(plist.get_nfilters())]
        unknown = [number for number in numbers if number not in _FILTERS]
        if unknown:
            trouble = f"the filter {unknown[0]}, which a plugin would have to undo"
    if not trouble and nbytes > _LARGEST_RATIO * stored + 4096:
        trouble = f"{nbytes} bytes claimed by {stored} in the file"
    if trouble:
        raise UnsafeFileError(
            where,
            expected="arrays whose bytes stand in this file, plain or packed with "
            + ", ".join(_FILTERS.values()),
            received=trouble,
            advice="write it again with h5py as a plain dataset, if you trust its source",
        )
