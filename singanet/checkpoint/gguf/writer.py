"""Writing GGUF files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from singanet.base.files import path_of, replacing
from singanet.checkpoint.checksum import SIZE, Beside, Checksum
from singanet.checkpoint.entry import Source, total_bytes
from singanet.checkpoint.gguf.blocks import BLOCKS, BlockType, eighths
from singanet.checkpoint.gguf.header import ALIGNMENT, ALIGNMENT_KEY, MAGIC, MOST_AXES, VERSION
from singanet.checkpoint.gguf.reader import CHECKSUMS_KEY, FORMAT_KEY, SEAL, SEALED_KEY
from singanet.checkpoint.gguf.values import packed_text, packed_values
from singanet.checkpoint.halves import FLOATS, StoredType, expect_types, stored_as
from singanet.checkpoint.names import check_name
from singanet.checkpoint.streaming import bytes_of, write_pieces
from singanet.checkpoint.version import FORMAT_VERSION
from singanet.errors import ArgumentError
from singanet.types import Array

EIGHTHS = "q8_0"
LONGEST_NAME = 63
"""Bytes; ggml has room for them and a zero."""
_NAMES = {block.dtype: block.name for block in BLOCKS.values() if block.decode is None}
_ROWS = 1 << 13
"""Blocks that are made at once, of a few hundred kB."""


def write_gguf(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    dtype: StoredType = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Write the table with ``values``, then the arrays.

    ``dtype`` is the type of floats, "float32", "float16", "bfloat16" or "q8_0", or a dict from
    array to one; arrays of one axis stay float32 where it is one name, as llama.cpp has them, and
    so do those whose rows are no whole blocks of 32 under "q8_0". Of ``values`` ints are written as
    uint32 where they fit, floats as float32, NumPy's numbers and arrays as they are. Errors:
    `ArgumentError` for names above 63 bytes, other types, and numbers that a type has not;
    `FileAccessError`.
    """
    path = path_of(path)
    where = f"gguf file {str(path)!r}"
    sources = _stored(sources, dtype, where)
    values = {key: value for key, value in (values or {}).items() if key != ALIGNMENT_KEY}
    for key in values:
        check_name(key, where)
    kinds = [_kind(source, where) for source in sources]
    digests = [bytes(SIZE)] * len(sources)
    with (
        replacing(path, nbytes=total_bytes(sources)) as beside_path,
        beside_path.open("wb") as stream,
        Beside() as beside,
    ):
        start = _header(sources, kinds, values, digests, where)
        stream.write(start)
        for k, (source, block) in enumerate(zip(sources, kinds, strict=True)):
            digests[k] = write_pieces(stream, map(bytes_of, source.pieces()), beside)
            stream.write(bytes(-block.stored(source.shape) % ALIGNMENT))
        stream.seek(0)
        stream.write(_header(sources, kinds, values, digests, where))


def _header(
    sources: Sequence[Source],
    kinds: Sequence[BlockType],
    values: Mapping[str, Any],
    digests: Sequence[bytes],
    where: str,
) -> bytes:
    """The file up to the first array."""
    sums = [f"{block.name} {digest.hex()}" for block, digest in zip(kinds, digests, strict=True)]
    parts, offset = [], 0
    for source, block in zip(sources, kinds, strict=True):
        axes = source.shape[::-1]
        told = struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, block.code, offset)
        parts.append(packed_text(source.name) + told)
        offset += block.stored(source.shape)
        offset += -offset % ALIGNMENT
    rows = b"".join(parts)
    seal = SEAL + Checksum().update(rows).digest()
    values = {**values, FORMAT_KEY: FORMAT_VERSION, CHECKSUMS_KEY: sums}
    start = MAGIC + struct.pack("<IQQ", VERSION, len(sources), len(values) + 1)
    start += packed_values(values, where)
    end = len(start) + len(packed_values({SEALED_KEY: ""}, where)) + len(rows)
    # So long that what is filled behind it has room for the seal.
    filling = " " * (-(end + len(seal)) % ALIGNMENT)
    return start + packed_values({SEALED_KEY: filling}, where) + rows + seal


def _stored(sources: Sequence[Source], dtype: StoredType, where: str) -> list[Source]:
    """``sources`` of the types in which they are written."""
    expect_types(dtype, (*FLOATS, EIGHTHS), where)
    wanted: dict[str, str] = {}
    for source in sources:
        if isinstance(dtype, Mapping):
            name = dtype.get(source.name)
        else:
            name = dtype if dtype is None or len(source.shape) > 1 else "float32"
        if name is not None:
            whole = source.shape and source.shape[-1] % 32 == 0
            wanted[source.name] = "float32" if name == EIGHTHS and not whole else name
    in_blocks = {name for name, kind in wanted.items() if kind == EIGHTHS}
    floats = {name: "float32" if name in in_blocks else kind for name, kind in wanted.items()}
    return [
        _in_blocks(source, where)
        if source.name in in_blocks and source.dtype.kind == "f"
        else source
        for source in stored_as(sources, floats, where)
    ]


def _in_blocks(source: Source, where: str) -> Source:
    def parts() -> Iterator[Array]:
        for part in source.pieces():
            rows = part.reshape(-1, 32)
            for start in range(0, len(rows), _ROWS):
                piece = rows[start : start + _ROWS]
                # A scale is a float16 number.
                if not (np.abs(piece).max(initial=0.0) < 65504 * 127):
                    raise ArgumentError(
                        f"{where}, {source.name!r}",
                        expected="numbers below 8,319,008 for blocks Q8_0",
                        received=f"{piece[~(np.abs(piece) < 65504 * 127)][0]}",
                        advice="write it as float32, or look where it grew so large",
                    )
                yield eighths(piece)

    def fetch() -> Array:
        return np.concatenate([np.empty((0, 34), np.uint8), *parts()])

    return replace(source, dtype=np.dtype("u1"), kind="Q8_0", fetch=fetch, parts=parts)


def _kind(source: Source, where: str) -> BlockType:
    """The type of ``source`` in the file. Errors: `ArgumentError` for what the format lacks."""
    where = f"{where}, array {source.name!r}"
    name = source.kind or _NAMES.get(source.dtype)
    if name is None or len(source.shape) > MOST_AXES:
        raise ArgumentError(
            where,
            expected=f"up to {MOST_AXES} axes and a type among {', '.join(map(str, _NAMES))}",
            received=f"{source.dtype} of shape {source.shape}",
            advice="convert the array, or use safetensors, hdf5 or npz",
        )
    if len(source.name.encode("utf-8", "replace")) > LONGEST_NAME:
        raise ArgumentError(
            where,
            expected=f"a name of at most {LONGEST_NAME} bytes",
            received=str(len(source.name.encode("utf-8", "replace"))),
            advice="rename the array, or use safetensors",
        )
    return BLOCKS[name]
