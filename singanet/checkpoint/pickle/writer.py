"""Writing pickles, one array at a time, that every Python and NumPy since SINGA 1.1 can load."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from singanet.base.files import replacing
from singanet.checkpoint.checksum import Beside
from singanet.checkpoint.entry import Source, total_bytes
from singanet.checkpoint.pickle.reader import CHECKSUMS, NAMES, START
from singanet.checkpoint.singa import pickle_path, record_keys
from singanet.checkpoint.streaming import bytes_of, write_bytes
from singanet.checkpoint.version import FORMAT_VERSION, KEY
from singanet.errors import ArgumentError

_LARGEST = (1 << 31) - 1


def write_pickle(path: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Write ``<path>.pickle``, as SINGA names it: a dict from parameter name to array.

    The keys are those of a snapshot. In Python 3 such files, like all of SINGA's, load with
    ``pickle.load(file, encoding="latin1")``. Errors: `ArgumentError` for an array above 2 GiB,
    which Python 2 strings cannot hold; `FileAccessError`.
    """
    path = pickle_path(path)
    for source in sources:
        if source.nbytes > _LARGEST:
            raise ArgumentError(
                f"pickle file {str(path)!r}, array {source.name!r}",
                expected="less than 2 GiB, which is all that a string of Python 2 can hold",
                received=f"{source.nbytes} bytes",
                advice="use safetensors, hdf5 or npz",
            )
    keys = record_keys([source.name for source in sources])
    checksums = {}
    with (
        replacing(path, nbytes=total_bytes(sources)) as beside_path,
        beside_path.open("wb") as stream,
        Beside() as beside,
    ):
        stream.write(START)
        for source in sources:
            key = keys[source.name]
            stream.write(_text(key))
            checksums[key] = _write_array(stream, source, beside).hex()
            stream.write(b"s")
        names = {key: name for name, key in keys.items() if name != key}
        _write_item(stream, KEY, _int(FORMAT_VERSION))
        _write_item(stream, NAMES, _texts(names))
        _write_item(stream, CHECKSUMS, _texts(checksums))
        stream.write(b".")


def _write_array(stream: BinaryIO, source: Source, beside: Beside) -> bytes:
    """The calls NumPy writes, under the module names that NumPy 1 and 2 both know."""
    stream.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR(K\1(")
    stream.write(b"".join(_int(axis) for axis in source.shape) + b"t")
    code = source.dtype.str[1:].encode()
    order = b"|" if source.dtype.itemsize == 1 else b"<"
    stream.write(b"cnumpy\ndtype\n(U" + bytes([len(code)]) + code + b"K\0K\1tR(K\3U\1" + order)
    stream.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89")
    stream.write(b"T" + source.nbytes.to_bytes(4, "little"))
    checksum = write_bytes(stream, bytes_of(source.array()), beside)
    stream.write(b"tb")
    return checksum


def _write_item(stream: BinaryIO, key: str, value: bytes) -> None:
    stream.write(_text(key) + value + b"s")


def _texts(texts: Mapping[str, str]) -> bytes:
    return b"}(" + b"".join(_text(key) + _text(value) for key, value in texts.items()) + b"u"


def _text(value: str) -> bytes:
    """A string of Python 2 where it is ASCII, since that is what SINGA's keys are."""
    raw = value.encode()
    if value.isascii() and len(raw) < 256:
        return b"U" + bytes([len(raw)]) + raw
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _int(value: int) -> bytes:
    """``value``, not negative, in the shortest form of protocol 2."""
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    raw = value.to_bytes(9, "little")
    return b"\x8a" + bytes([len(raw)]) + raw
