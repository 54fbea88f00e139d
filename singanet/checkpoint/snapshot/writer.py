"""Writing snapshots that SINGA's readers take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

from singanet.base.files import replacing
from singanet.checkpoint.checksum import SIZE, Beside, Checksum
from singanet.checkpoint.entry import Source, total_bytes
from singanet.checkpoint.singa import record_keys, record_path
from singanet.checkpoint.snapshot.desc import desc_text
from singanet.checkpoint.snapshot.reader import EMPTY_KEY, MAGIC
from singanet.checkpoint.snapshot.types import DATA_TYPES, KINDS
from singanet.checkpoint.snapshot.varint import encode, encode_all, encoded_size
from singanet.checkpoint.streaming import bytes_of, write_bytes
from singanet.checkpoint.version import FORMAT_VERSION
from singanet.errors import ArgumentError
from singanet.schema.core_pb2 import TensorProto
from singanet.types import Array

LARGEST = (1 << 31) - 1
"""Protobuf reads no message above this, and SINGA only the low 32 bits of a length."""
_CHUNK = 1 << 16


def write_snapshot(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    plain: bool = False,
) -> None:
    """Write ``<prefix>.bin`` and ``<prefix>.desc``; ``path`` is the prefix or the ``.bin``.

    The keys spell ``conv/weight`` as ``conv_weight``: so every SINGA from 1.1.0 on finds them,
    and the full name stands in a field of ours, beside the checksum. ``plain`` leaves our fields
    out and gives the very bytes of SINGA 1.1. Errors: `ArgumentError` for a type without a place
    in a record or an array above 2 GiB, `FileAccessError`.
    """
    path = record_path(path)
    _check(f"snapshot file {str(path)!r}", sources)
    keys = record_keys([source.name for source in sources])
    # Moved in the reverse order: .bin is the truth and goes first, .desc only describes it.
    text = desc_text(sources, keys, plain).encode()
    with (
        replacing(path.with_suffix(".desc"), nbytes=len(text)) as desc,
        replacing(path, nbytes=total_bytes(sources)) as records,
    ):
        desc.write_bytes(text)
        with records.open("wb", buffering=0) as stream, Beside() as beside:
            for index, source in enumerate(sources):
                left = len(sources) - index - 1
                _write_record(stream, source, keys[source.name], left, plain, beside)
            if not sources and not plain:
                _write(stream, _start(EMPTY_KEY, len(empty := _tail(0, "", b""))) + empty)


def _check(where: str, sources: Sequence[Source]) -> None:
    for source in sources:
        if source.dtype not in DATA_TYPES:
            raise ArgumentError(
                f"{where}, array {source.name!r}",
                expected=f"a type among {', '.join(str(dtype) for dtype in DATA_TYPES)}",
                received=str(source.dtype),
                advice="convert the array, or use safetensors, hdf5 or npz",
            )
        if source.nbytes > LARGEST - 4096:
            raise ArgumentError(
                f"{where}, array {source.name!r}",
                expected="less than 2 GiB, which is all that a protobuf record can hold",
                received=f"{source.nbytes} bytes",
                advice="use safetensors, hdf5 or npz",
            )


def _write_record(
    stream: BinaryIO, source: Source, key: str, left: int, plain: bool, beside: Beside
) -> None:
    array = source.array()
    number = DATA_TYPES[source.dtype]
    kind = KINDS[number]
    # No stride: absent means row-major to every release, while 0 would mean "repeated" to some.
    head = TensorProto(shape=source.shape, data_type=number, stride=[0] if plain else [])
    start = head.SerializeToString()
    size = array.nbytes if kind.width else encoded_size(array)
    if size:
        start += encode(kind.field << 3 | 2) + encode(size)
    name = "" if key == source.name else source.name
    tail_size = 0 if plain else len(_tail(left, name, bytes(SIZE)))
    _write(stream, _start(key, len(start) + size + tail_size) + start)
    if kind.width:
        checksum = write_bytes(stream, bytes_of(array), beside)
    else:
        checksum = _write_integers(stream, array)
    if not plain:
        _write(stream, _tail(left, name, checksum))


def _write_integers(stream: BinaryIO, array: Array) -> bytes:
    checksum = Checksum()
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = encode_all(flat[start : start + _CHUNK])
        checksum.update(piece)
        _write(stream, piece)
    return checksum.digest()


def _start(key: str, size: int) -> bytes:
    raw = key.encode()
    return b"".join(
        (MAGIC, b"\1\0", len(raw).to_bytes(8, "little"), raw, size.to_bytes(8, "little"))
    )


def _tail(left: int, name: str, checksum: bytes) -> bytes:
    fields = TensorProto(format_version=FORMAT_VERSION, records_left=left, checksum=checksum)
    if name:
        fields.name = name
    tail: bytes = fields.SerializeToString()
    return tail


def _write(stream: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]
