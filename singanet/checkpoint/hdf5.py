"""HDF5 files, read and written."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import Budget
from singanet.base.files import path_of, replacing
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    KEY,
    MAX_ARRAYS,
    Checksum,
    ChecksumThread,
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
    write_bytes,
)
from singanet.checkpoint.halves import widen
from singanet.checkpoint.hdf5_guard import attribute, check_dataset, hdf5_errors, is_legacy
from singanet.checkpoint.reader import StreamReader
from singanet.errors import ArgumentError, ChecksumError, FileFormatError, UnsafeFileError
from singanet.types import Array, Shape

_KINDS = "biuf"
_BFLOAT = np.dtype("V2")


@dataclass(frozen=True, slots=True)
class Stored:
    """A dataset, with ``size`` bytes in the file.

    ``offset`` is the position of its bytes if NumPy can read them directly.
    """

    id: Any
    shape: Shape
    dtype: np.dtype[Any]
    size: int
    bfloat: bool
    offset: int | None


class Maker:
    """A factory of the datasets of one file, with shared property lists."""

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
        """Create a contiguous dataset, allocated in the file and not yet filled."""
        import h5py

        plist = self._full if math.prod(shape) else self._empty
        space = h5py.h5s.create_simple(shape) if shape else self._scalar
        kind = self._kind(dtype)
        return h5py.h5d.create(self._group, path.encode(), kind, space, plist, self._links)

    def mark(self, dataset: Any, name: str, text: str) -> None:
        """Add a fixed-length string attribute to ``dataset``; the reader refuses variable ones."""
        import h5py

        value = np.array(text.encode())
        kind = self._kind(value.dtype)
        h5py.h5a.create(dataset, name.encode(), kind, self._scalar).write(value, kind)

    def _kind(self, dtype: np.dtype[Any]) -> Any:
        import h5py

        if dtype not in self._kinds:
            self._kinds[dtype] = h5py.h5t.py_create(dtype, logical=True)
        return self._kinds[dtype]


def fill(dataset: Any, array: Array, raw: BinaryIO, hasher: ChecksumThread) -> bytes:
    """Write ``array`` through ``raw``, a second handle of the file; return the checksum."""
    offset = dataset.get_offset()
    if array.size and offset is not None:
        raw.seek(offset)
    return write_bytes(raw, bytes_of(array), hasher)


def look_through(dataset: Any, where: str) -> Stored:
    """Return shape, dtype and place of a `DatasetID`'s array.

    Errors: `FileFormatError` for an unsupported dtype or an invalid size.
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
    # h5py represents a null dataspace as a missing shape.
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
    # Only contiguous data have an offset; packed or external data have none. The file's type may be
    # wider than an equal NumPy type, as for an enumeration.
    offset = dataset.get_offset() if dtype == wanted and size == nbytes else None
    if offset is None:
        check_dataset(dataset, nbytes, size, where)
    return Stored(dataset, shape, wanted, size, bfloat, offset)


def _is_bfloat(dataset: Any) -> bool:
    """Return whether two-byte elements are bfloat16, in Keras' form."""
    import h5py

    # The attribute's value is not read: libhdf5 reads variable-length strings unsafely.
    return bool(h5py.h5a.exists(dataset, b"dtype"))


def load(
    stored: Stored, raw: BinaryIO, size: int, hasher: ChecksumThread, where: str
) -> tuple[Array, bytes]:
    """Return the array, and the checksum of its bytes if they were read directly."""
    import h5py

    everything = h5py.h5s.ALL
    if stored.bfloat:
        words = np.empty(stored.shape, _BFLOAT)
        stored.id.read(everything, everything, words)
        return widen(words.view("<u2")), b""
    array = np.empty(stored.shape, stored.dtype)
    if stored.offset is not None and stored.offset + array.nbytes <= size:
        raw.seek(stored.offset)
        digest = read_bytes(raw, bytes_of(array), hasher, where)
        return as_bools(array), digest
    if array.size:
        stored.id.read(everything, everything, array)
    return array, b""


_MOST_GROUPS, _GROUPS_PER_ARRAY = 5000, 4
"""The maximum groups of a file, and extra groups for each array: libhdf5 is slow with groups."""


def walk(group: Any, found: Callable[[str, Any], None], where: str) -> None:
    """Call ``found(path, DatasetID)`` for each dataset below ``group``, a `GroupID`, in file order.

    libhdf5 iterates over links, since h5py's objects would take many times as long. Errors:
    `UnsafeFileError` for soft and external links and for an object reached twice.
    """
    walker = _Walker(group, found, where)
    troubles: list[BaseException] = []

    def step(raw: bytes, info: Any) -> bool | None:
        try:
            walker.link(raw, info)
        except BaseException as error:  # noqa: BLE001 - raised below: h5py's visit drops it
            troubles.append(error)
            return True
        return None

    group.links.visit(step, info=True)
    if troubles:
        raise troubles[0]
    walker.leave("")


class _Walker:
    """The state of a walk; the next link shows whether the last one is a group."""

    def __init__(self, group: Any, found: Callable[[str, Any], None], where: str) -> None:
        import h5py

        self._group, self._found, self._where = group, found, where
        self._refuse = partial(_refused, where)
        # Bytes are checked elsewhere: libhdf5 allocates without a budget.
        self._budget = Budget(1 << 40, self._refuse, 2 * MAX_ARRAYS)
        self._groups = Budget(0, self._refuse, _MOST_GROUPS)
        self._groups.spend()
        self._last = ""
        self._seen = {h5py.h5o.get_info(group).addr}

    def link(self, raw: bytes, info: Any) -> None:
        """Add the next link in file order; a group's links follow it directly."""
        import h5py

        self._budget.spend()
        path = check_name(raw.decode("utf-8", "surrogateescape"), self._where)
        self.leave(path)
        if info.type != h5py.h5l.TYPE_HARD:
            kind = "an external link" if info.type == h5py.h5l.TYPE_EXTERNAL else "a soft link"
            raise self._refuse("arrays and groups", f"{kind} called {path!r}")
        if info.u in self._seen:
            raise self._refuse("every object once", f"{path!r}, a second link to an object")
        self._seen.add(info.u)
        self._budget.expect_depth(path.count("/"))
        self._last = path

    def leave(self, path: str) -> None:
        """Finish the last link: a group if ``path`` is below it, otherwise open its object."""
        import h5py

        last, self._last = self._last, ""
        if not last:
            return
        if path.startswith(f"{last}/"):
            self._groups.spend()
            return
        item = h5py.h5o.open(self._group, last.encode("utf-8", "surrogateescape"))
        if isinstance(item, h5py.h5d.DatasetID):
            self._groups.spend(0, -_GROUPS_PER_ARRAY)
            self._found(last, item)
        elif isinstance(item, h5py.h5g.GroupID):
            self._groups.spend()
        else:
            raise FileFormatError(
                self._where,
                expected="arrays and groups",
                received=f"{last!r}, which is neither",
                advice="write it again with h5py as plain datasets",
            )


def _refused(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="write it again with h5py as plain datasets, if you trust its source",
    )


_KERAS_PATH = re.compile(r"(layers|_layer_checkpoint_dependencies)/.*vars/\d+$")
MARK = "singanet"
"""The attribute of each of our arrays: its index and its checksum."""


class Hdf5Reader(StreamReader):
    """A reader of every dataset by path; our files list arrays in the order of writing."""

    format = "hdf5"

    def __init__(self, path: Path) -> None:
        self._file: Any = None
        self._datasets: dict[str, Stored] = {}
        super().__init__(path)

    def _list(self) -> None:
        import h5py

        with hdf5_errors(self.where):
            self._file = h5py.File(self.path, "r")
            # After a user block, libhdf5's offsets are not positions in the file.
            self._plain_size = 0 if self._file.userblock_size else self._size
            root = self._file.id
            version = attribute(root, KEY, self.where)
            if version is not None:
                self.version = f"singanet format {check_version(version, self.where)}"
            order: list[tuple[int, Entry]] = []

            def found(name: str, dataset: Any) -> None:
                if len(order) >= MAX_ARRAYS:
                    raise too_many(self.where)
                if name in self._datasets:
                    raise duplicate(name, self.where)
                stored = look_through(dataset, f"{self.where}, array {name!r}")
                self._datasets[name] = stored
                index, checksum = MAX_ARRAYS, ""
                mark = None if version is None else attribute(dataset, MARK, self.where)
                if mark is not None:
                    number, _, checksum = str(mark).partition(" ")
                    index = int(number)
                entry = Entry(name, stored.shape, stored.dtype, stored.size, checksum)
                order.append((index, entry))

            walk(root, found, self.where)
            if version is not None:
                # Other programs may add arrays, and delete the marks of arrays that they change.
                added = sum(index == MAX_ARRAYS for index, _ in order)
                count = int(attribute(root, "count", self.where))
                if len(order) - added > count or len(order) < count:
                    raise self._other_count(count, len(order) - added)
            self.entries = {entry.name: entry for _, entry in sorted(order, key=_index)}

    @property
    def _foreign_layout(self) -> bool:
        """Return whether this is a Keras weights file, current or legacy."""
        with hdf5_errors(self.where):
            return is_legacy(self._file) or any(map(_KERAS_PATH.match, self.entries))

    def _other_count(self, count: int, received: int) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=f"{count} arrays, the number written",
            received=str(received),
            advice="the file is damaged: copy it again, or use an earlier checkpoint; if a program"
            " deleted arrays, delete the attribute 'singanet_format' as well",
        )

    def _read(self, entry: Entry) -> Array:
        where = f"{self.where}, array {entry.name!r}"
        with hdf5_errors(where):
            stored = self._datasets[entry.name]
            array, digest = load(stored, self._stream, self._plain_size, self._hasher, where)
            if entry.checksum:
                digest = digest or Checksum().update(bytes_of(array)).digest()
                try:
                    check_digest(entry, digest, self.where)
                except ChecksumError as error:
                    raise error.advising(
                        f"{error.advice}; if a program changed the array, delete its attribute"
                        f" {MARK!r} as well"
                    ) from None
        return array

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._datasets.clear()
        if self._file is not None:
            with hdf5_errors(self.where):
                self._file.close()


def _index(item: tuple[int, Entry]) -> int:
    return item[0]


# A truncated file is readable up to the last flush, which takes a millisecond.
_FLUSH_AFTER = 64 << 20


def write_hdf5(path: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Write each array as a dataset of its name, with its checksum as an attribute.

    Errors: `ArgumentError` if one name is a group of another; `FileAccessError`.
    """
    write_datasets(path, sources, {}, {})


def write_datasets(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    attributes: Mapping[str, Any],
    of_groups: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write datasets as `write_hdf5`, with ``attributes`` of the root and ``of_groups``."""
    import h5py

    path = path_of(path)
    _check(f"hdf5 file {str(path)!r}", sources)
    with replacing(path, nbytes=total_bytes(sources)) as temporary, _as_os_errors():
        file = h5py.File(temporary, "w")
        with closing(file), temporary.open("rb+", buffering=0) as raw, ChecksumThread() as hasher:
            file.attrs.update({KEY: FORMAT_VERSION, "count": len(sources), **attributes})
            left = _FLUSH_AFTER
            maker = Maker(file.id)
            for index, source in enumerate(sources):
                dataset = maker.create(source.name, source.shape, source.dtype)
                checksum = fill(dataset, source.array(), raw, hasher)
                maker.mark(dataset, MARK, f"{index} {checksum.hex()}")
                left -= source.nbytes
                if left < 0:
                    file.flush()
                    left = _FLUSH_AFTER
            for name, marks in of_groups.items():
                file.require_group(name).attrs.update(marks)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn libhdf5's long texts about system errors, often several chained, into `OSError`."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            found = re.search(r"errno = (\d+), error message = '([^']*)'", str(cause))
            if found:
                raise OSError(int(found[1]), found[2]) from error
            if isinstance(cause, OSError):
                raise cause from None
            cause = cause.__context__
        raise


def _check(where: str, sources: Sequence[Source]) -> None:
    names = {source.name for source in sources}
    for name in names:
        parts = name.split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            if above in names:
                raise ArgumentError(
                    where,
                    expected="no name that is the folder of another",
                    received=f"{above!r} and {name!r}",
                    advice="rename one, or use safetensors, npz or a snapshot",
                )
