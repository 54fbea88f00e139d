"""Guards against hostile HDF5 files: datasets, attributes, strings, and Keras' marks.

libhdf5 allocates any length that a file claims, and loops forever in a heap that claims 2⁶⁴ - 16
bytes. The layout of heaps: https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html, section III.E; of
attributes in object headers: IV.A.1 and IV.A.2.m.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from singanet.errors import FileFormatError, SingaNetError, UnsafeFileError

# libhdf5 searches a plugin folder for other filters and loads them as code.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_LARGEST_RATIO = 1032  # deflate expands no further


@contextlib.contextmanager
def hdf5_errors(where: str) -> Iterator[None]:
    """Turn h5py's errors about a damaged file into `FileFormatError`; Ctrl-C passes through."""
    try:
        yield
    except SingaNetError:
        raise
    except SystemError as error:
        # An interrupt inside a lock of h5py, reported when it is released.
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
    """Return the attribute ``name`` of ``item``, an `ObjectID`: a number, a string or None.

    Errors: `FileFormatError` for a variable-length string: a damaged heap of these makes libhdf5
    loop forever.
    """
    import h5py

    # h5py's attrs would look up each attribute three more times.
    raw = name.encode()
    if not h5py.h5a.exists(item, raw):
        return None
    found = h5py.h5a.open(item, raw)
    kind = found.get_type()
    text = kind.get_class() == h5py.h5t.STRING
    number = kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
    # A single element takes exactly its type's size; reading the shape would create another libhdf5
    # object.
    one = found.get_storage_size() == kind.get_size()
    if not (number or (text and not kind.is_variable_str())) or not one:
        raise FileFormatError(
            f"{where}, attribute {name!r}",
            expected="one number or fixed-length string",
            received="another type",
            advice="write the file again",
        )
    if text:
        value = np.empty((), f"S{kind.get_size()}")
        found.read(value, kind)  # without conversion
    else:
        value = np.empty((), found.dtype)
        found.read(value)
    return bytes(value[()]).decode("utf-8", "replace") if text else value[()]


def check_dataset(dataset: Any, nbytes: int, stored: int, where: str) -> None:
    """Check how libhdf5 would read ``nbytes`` from the ``stored`` bytes of a `DatasetID`.

    Errors: `UnsafeFileError` for external data, plugins, and sizes without stored bytes.
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
            expected="arrays stored in this file, plain or compressed with "
            + ", ".join(_FILTERS.values()),
            received=trouble,
            advice="write it again with h5py as a plain dataset, if you trust its source",
        )


_MAGIC = b"GCOL\1"
_HEADER = 16
_ATTRIBUTE, _CONTINUATION = 0x0C, 0x10
_LARGEST = 1 << 26


class Texts:
    """A reader of lists of strings from ``stream``, the ``size`` bytes of the open ``file``."""

    def __init__(self, file: Any, stream: BinaryIO, size: int) -> None:
        self._file, self._stream, self._size = file, stream, size
        # Many strings may share bytes: their total is limited to the file's size.
        self._remaining = size
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}

    def read(self, item: Any, key: str, count: int) -> list[str]:
        """Return the ``count`` strings in the attribute ``key`` of ``item``. Raises ValueError."""
        import h5py

        if self._file.id.get_create_plist().get_sizes() != (8, 8):
            raise ValueError("addresses that are not 8 bytes wide")
        address = h5py.h5o.get_info(item.id).addr
        base = self._file.userblock_size
        data = attribute_bytes(self._stream, base, address, key.encode())
        if len(data) < 16 * count:
            raise ValueError(f"{count} strings in {len(data)} bytes")
        places = struct.iter_unpack("<LQL", data[: 16 * count])
        return [self._text(length, base + heap, index) for length, heap, index in places]

    def _text(self, length: int, heap: int, index: int) -> str:
        if not length:
            return ""
        if heap not in self._heaps:
            self._heaps[heap] = self._objects(heap)
        offset, size = self._heaps[heap].get(index, (0, 0))
        if length > min(size, self._remaining):
            raise ValueError(f"a string of {length} bytes in {min(size, self._remaining)} bytes")
        self._remaining -= length
        self._stream.seek(offset)
        return self._stream.read(length).split(b"\0")[0].decode("utf-8", "replace")

    def _objects(self, heap: int) -> dict[int, tuple[int, int]]:
        """Return offset and size of each object of the heap at ``heap``, by number."""
        start = self._piece(heap, _HEADER)
        whole = int.from_bytes(start[8:], "little")
        if not start.startswith(_MAGIC) or not _HEADER <= whole <= self._size - heap:
            raise ValueError("no complete heap of strings at its address")
        found, at, end = {}, heap + _HEADER, heap + whole
        while end - at >= _HEADER:
            index, _, _, size = struct.unpack("<HHLQ", self._piece(at, _HEADER))
            if index == 0:  # the free space, which is last
                break
            if size > end - at - _HEADER:
                raise ValueError("a string larger than its heap")
            found[index] = at + _HEADER, size
            at += _HEADER + (size + 7) // 8 * 8
        return found

    def _piece(self, offset: int, size: int) -> bytes:
        if offset > self._size - size:
            raise ValueError("a heap of strings beyond the end of the file")
        self._stream.seek(offset)
        return self._stream.read(size)


def attribute_bytes(stream: BinaryIO, base: int, address: int, name: bytes) -> bytes:
    """Return the data of the attribute ``name`` of the object with its header at ``address``.

    ``base`` is the origin of the file's addresses. Raises ValueError if the header has no such
    message.
    """
    for message in _messages(stream, base, address):
        found, data = _split(message)
        if found == name:
            return data
    raise ValueError(f"the attribute {name.decode()!r} is not in its object's header")


def _messages(stream: BinaryIO, base: int, address: int) -> Iterator[bytes]:
    """Yield each attribute message of a header, of either version, block by block."""
    start = _at(stream, base + address, 16)
    if start.startswith(b"OHDR\2"):
        flags = start[5]
        skipped = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(_at(stream, base + address + skipped, width), "little")
        blocks = [(base + address + skipped + width, size)]
        head, order = 4, 2 if flags & 0x04 else 0
    elif start[0] == 1:
        blocks = [(base + address + 16, int.from_bytes(start[8:12], "little"))]
        head, order = 8, 0
    else:
        raise ValueError("an object without a header")
    seen = 0
    for place, size in blocks:  # grows while it is walked
        seen += size
        if seen > _LARGEST:
            raise ValueError("a header without end")
        block, at = _at(stream, place, size), 0
        while at + head + order <= size:
            kind = block[at] if head == 4 else int.from_bytes(block[at : at + 2], "little")
            length_at = at + (1 if head == 4 else 2)
            length = int.from_bytes(block[length_at : length_at + 2], "little")
            at += head + order
            body = block[at : at + length]
            at += length
            if kind == _CONTINUATION:
                target, length = struct.unpack("<QQ", body[:16])
                # Continuation blocks of version 2 start with a signature and end with a checksum.
                blocks.append(
                    (base + target, length) if head == 8 else (base + target + 4, length - 8)
                )
            elif kind == _ATTRIBUTE:
                yield body


def _split(message: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data of an attribute message."""
    version, _, *sizes = struct.unpack("<BBHHH", message[:8])
    start = 9 if version == 3 else 8
    if version == 1:
        name, kind, space = ((size + 7) // 8 * 8 for size in sizes)
    else:
        name, kind, space = sizes
    return message[start : start + name].split(b"\0")[0], message[start + name + kind + space :]


def _at(stream: BinaryIO, place: int, size: int) -> bytes:
    if not 0 <= size <= _LARGEST:
        raise ValueError("a header above the maximum size")
    stream.seek(place)
    data = stream.read(size)
    if len(data) < size:
        raise ValueError("a header beyond the end of the file")
    return data


def is_legacy(file: Any) -> bool:
    """Return whether ``file`` is a legacy Keras file, a whole model or weights alone."""
    attributes = weights_group(file).attrs
    return "layer_names" in attributes or "layer_names0" in attributes


def weights_group(file: Any) -> Any:
    """Return the parent of the layers' groups: ``model_weights`` in a whole model, or the root."""
    import h5py

    found = file.get("model_weights", getclass=True, getlink=False)
    return file["model_weights"] if found is h5py.Group else file
