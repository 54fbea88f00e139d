"""Pickled dicts of arrays, read without running code, and written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import Budget
from singanet.base.files import replacing
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    KEY,
    MAX_ARRAYS,
    REWRITTEN,
    Checksum,
    ChecksumThread,
    Entry,
    Source,
    as_bools,
    bytes_of,
    check_digest,
    check_name,
    check_version,
    duplicate,
    read_bytes,
    too_many,
    total_bytes,
    write_bytes,
)
from singanet.checkpoint.reader import StreamReader, find_pickle, pickle_path, record_keys
from singanet.data.pickles import RAW, Pickled, StoredText, pieces, recognise, run_program, text
from singanet.errors import ArgumentError, FileFormatError, UnsafeFileError
from singanet.types import Array

VERSION_KEY = "SINGA_VERSION"
MOST_STEPS = 500_000
"""The maximum steps of a pickle program; a state of 20,000 arrays needs fewer."""
START = b"\x80\x02}"
"""The first bytes of our files, before a key; Python's picklers memoize the dict first."""
NAMES, CHECKSUMS = "singanet_names", "singanet_checksums"


class PickleReader(StreamReader):
    """A reader of a pickled dict of arrays; nothing in the file is imported or called."""

    format = "pickle"

    def __init__(self, path: Path) -> None:
        self._arrays: dict[str, Pickled] = {}
        super().__init__(find_pickle(path))

    def _list(self) -> None:
        budget = Budget(self._size, self._damaged, MOST_STEPS)
        found = run_program(self._stream, self._size, budget, self._unsafe)
        if type(found) is not dict:
            raise self._damaged("a dict from names to arrays", type(found).__name__)
        try:
            items = {text(key): value for key, value in found.items()}
        except TypeError:
            raise self._damaged("names that are strings", "other keys") from None
        singa, mark = items.pop(VERSION_KEY, None), items.pop(KEY, None)
        names = _texts(items.pop(NAMES, {}), budget)
        checksums = _texts(items.pop(CHECKSUMS, {}), budget)
        ours = mark is not None and self._begins_as_ours()
        if mark is not None:
            self.version = f"singanet format {check_version(mark, self.where)}"
            self.version += "" if ours else REWRITTEN
        else:
            known = singa if isinstance(singa, int) else "of unknown version"
            self.version = f"SINGA {known}"
        for key, value in items.items():
            name = check_name(names.get(key, key), self.where)
            if name in self.entries:
                raise duplicate(name, self.where)
            if len(self.entries) >= MAX_ARRAYS:
                raise too_many(self.where)
            array = self._array(name, value)
            dtype = array.dtype.newbyteorder("<")
            checksum = checksums.get(key, "none") if ours else ""
            self.entries[name] = Entry(name, array.shape, dtype, array.stored, checksum)
            self._arrays[name] = array
        if sum(array.stored for array in self._arrays.values() if array.stored > 8) > self._size:
            raise self._unsafe(f"at most {self._size} bytes of arrays", "arrays with shared bytes")

    def _begins_as_ours(self) -> bool:
        """Return whether we wrote the file, not another program that copied our marks."""
        self._stream.seek(0)
        begin = self._stream.read(len(START) + 1)
        return begin[:-1] == START and begin[-1:] in (b"U", b"X")

    def _array(self, name: str, value: Any) -> Pickled:
        def refuse(expected: str, received: str) -> FileFormatError:
            return FileFormatError(
                f"{self.where}, array {name!r}",
                expected=expected,
                received=received,
                advice="remove it from the dict before pickling, or use safetensors or npz",
            )

        def unsafe(expected: str, received: str) -> UnsafeFileError:
            return self._unsafe(expected, received, f", array {name!r}")

        if not isinstance(value, (int, float)):
            return recognise(value, self._size, refuse, unsafe)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise refuse("numbers of up to 64 bits", "a larger number")
        array = np.array(value)
        dtype = array.dtype.newbyteorder("<")
        return Pickled((), dtype, False, array.astype(dtype).tobytes())

    def _read(self, entry: Entry) -> Array:
        pickled = self._arrays[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        flat = np.empty(entry.nbytes // entry.dtype.itemsize, pickled.dtype)
        digest = self._fill(bytes_of(flat), pickled.data, where)
        check_digest(entry, digest, self.where)
        order = "F" if pickled.fortran_order else "C"
        array = as_bools(flat).reshape(entry.shape, order=order)  # type: ignore[call-overload]
        return np.asarray(array, dtype=entry.dtype, order="C")

    def _fill(self, out: memoryview, data: bytes | StoredText, where: str) -> bytes:
        if isinstance(data, StoredText) and data.coding == RAW and data.size == len(out):
            self._stream.seek(data.offset)
            return read_bytes(self._stream, out, self._hasher, where)
        checksum, filled = Checksum(), 0
        try:
            parts = pieces(self._stream, data) if isinstance(data, StoredText) else [data]
            for piece in parts:
                if len(piece) > len(out) - filled:
                    raise ValueError(f"more than {len(out)} bytes of elements")
                out[filled : filled + len(piece)] = piece
                checksum.update(piece)
                filled += len(piece)
            if filled < len(out):
                raise ValueError(f"{filled} bytes of elements")
        except ValueError as error:
            raise self._damaged(f"{len(out)} bytes for {where}", str(error)) from None
        return checksum.digest()

    def _unsafe(self, expected: str, received: str, within: str = "") -> UnsafeFileError:
        return UnsafeFileError(
            self.where + within,
            expected=expected,
            received=received,
            advice="do not load it; ask its author for safetensors or npz",
        )

    def _damaged(self, expected: str, received: str) -> FileFormatError:
        return FileFormatError(
            self.where,
            expected=expected,
            received=received,
            advice="the file is damaged, or contains more than weights: write it again",
        )


def _texts(value: Any, budget: Budget) -> dict[str, str]:
    """Return our own dict of strings; other items are ignored."""
    texts = {}
    for key, item in value.items() if type(value) is dict else ():
        if isinstance(key, (str, bytes)) and isinstance(item, (str, bytes)):
            budget.spend(len(key) + len(item))  # decoded again at each reference
            texts[text(key)] = text(item)
    return texts


_LARGEST = (1 << 31) - 1


def write_pickle(path: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Write ``<path>.pickle``, SINGA's name: a dict from parameter name to array.

    The keys are a snapshot's. In Python 3 these files, like all of SINGA's, load with
    ``pickle.load(file, encoding="latin1")``. Errors: `ArgumentError` for an array above 2 GiB, the
    limit of Python 2 strings; `FileAccessError`.
    """
    path = pickle_path(path)
    for source in sources:
        if source.nbytes > _LARGEST:
            raise ArgumentError(
                f"pickle file {str(path)!r}, array {source.name!r}",
                expected="less than 2 GiB, the limit of a string in Python 2",
                received=f"{source.nbytes} bytes",
                advice="use safetensors, hdf5 or npz",
            )
    keys = record_keys([source.name for source in sources])
    checksums = {}
    with (
        replacing(path, nbytes=total_bytes(sources)) as temporary,
        temporary.open("wb") as stream,
        ChecksumThread() as hasher,
    ):
        stream.write(START)
        for source in sources:
            key = keys[source.name]
            stream.write(_text(key))
            checksums[key] = _write_array(stream, source, hasher).hex()
            stream.write(b"s")
        names = {key: name for name, key in keys.items() if name != key}
        _write_item(stream, KEY, _int(FORMAT_VERSION))
        _write_item(stream, NAMES, _texts_of(names))
        _write_item(stream, CHECKSUMS, _texts_of(checksums))
        stream.write(b".")


def _write_array(stream: BinaryIO, source: Source, hasher: ChecksumThread) -> bytes:
    """Write the calls that NumPy pickles, with module names known to NumPy 1 and 2."""
    stream.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR(K\1(")
    stream.write(b"".join(_int(axis) for axis in source.shape) + b"t")
    code = source.dtype.str[1:].encode()
    order = b"|" if source.dtype.itemsize == 1 else b"<"
    stream.write(b"cnumpy\ndtype\n(U" + bytes([len(code)]) + code + b"K\0K\1tR(K\3U\1" + order)
    stream.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89")
    stream.write(b"T" + source.nbytes.to_bytes(4, "little"))
    checksum = write_bytes(stream, bytes_of(source.array()), hasher)
    stream.write(b"tb")
    return checksum


def _write_item(stream: BinaryIO, key: str, value: bytes) -> None:
    stream.write(_text(key) + value + b"s")


def _texts_of(texts: Mapping[str, str]) -> bytes:
    return b"}(" + b"".join(_text(key) + _text(value) for key, value in texts.items()) + b"u"


def _text(value: str) -> bytes:
    """Return a Python 2 string if ``value`` is ASCII, as SINGA's keys are."""
    raw = value.encode()
    if value.isascii() and len(raw) < 256:
        return b"U" + bytes([len(raw)]) + raw
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _int(value: int) -> bytes:
    """Return non-negative ``value`` in the shortest form of protocol 2."""
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    raw = value.to_bytes(9, "little")
    return b"\x8a" + bytes([len(raw)]) + raw
