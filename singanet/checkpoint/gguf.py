"""GGUF files, read and written.

A rotary embedding rotates pairs of a head's features. transformers stores the first features of all
pairs before the second ones. llama.cpp stores the two features of a pair next to each other for its
Llama family (``general.architecture`` llama), and not for Qwen, Gemma or Phi.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import Budget
from singanet.base.files import path_of, replacing
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    REWRITTEN,
    SIZE,
    Checksum,
    ChecksumThread,
    Entry,
    Source,
    bytes_of,
    check_digest,
    check_name,
    check_shape,
    check_unique,
    check_version,
    read_exactly,
    run_shape,
    runs_of_rows,
    total_bytes,
    write_pieces,
)
from singanet.checkpoint.gguf_blocks import (
    BLOCKS,
    OTHERS,
    BlockType,
    Cursor,
    eighths,
    packed_text,
    packed_values,
)
from singanet.checkpoint.halves import FLOATS, StoredType, expect_types, stored_as
from singanet.checkpoint.reader import StreamReader
from singanet.errors import ArgumentError, FileFormatError, ShapeError, VersionError, one_of
from singanet.types import Array

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT, ALIGNMENT_KEY = 32, "general.alignment"
MOST_AXES = 4
_LARGEST_ALIGNMENT = 1 << 20
_MOST_PARTS = 4_000_000
"""The maximum number of parts, such as tokens and merges; published tokenizers have 700,000."""
_BY_CODE = {block.code: block for block in BLOCKS.values()}


@dataclass
class GgufTable:
    """Values and arrays in file order; offsets count from the start of the file."""

    values: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, BlockType] = field(default_factory=dict)
    end: int = 0
    """The end of the last array, without padding to ``alignment``."""
    alignment: int = ALIGNMENT
    rows: tuple[int, int] = (0, 0)
    """The start and end of the array table."""


def parse(stream: BinaryIO, size: int, where: str) -> GgufTable:
    """Read the table of a file of ``size`` bytes from ``stream``, at its start.

    Errors: `VersionError`; `FileFormatError` if the file is damaged or too large, if arrays
    overlap, or for unsupported types.
    """
    cursor = Cursor(stream, size, Budget(size, partial(broken, where), _MOST_PARTS), where)
    if cursor.take(4) != MAGIC:
        raise broken(where, f"a file that starts with {MAGIC!r}", "other bytes")
    _check_version(cursor.take(4), where)
    arrays, values = cursor.natural(8), cursor.natural(8)
    header = GgufTable()
    for _ in range(values):
        key = check_name(cursor.text(), where)
        if key in header.values:
            raise broken(where, "each value once", f"{key[:80]!r} twice")
        header.values[key] = cursor.value()
    header.alignment = _alignment(header.values, where)
    split = header.values.get("split.count", 0)
    if not isinstance(split, (str, list, np.ndarray)) and split > 1:
        raise broken(where, "a model in one file", f"a part of {split}").advising(
            "join the parts with llama.cpp's gguf-split --merge"
        )
    begin = cursor.at
    for _ in range(arrays):
        _take_array(cursor, header, size, where)
    header.rows = begin, cursor.at
    check_unique(header.entries, where)
    _place(header, cursor.at, size, where)
    return header


def _check_version(raw: bytes, where: str) -> None:
    version, swapped = (int.from_bytes(raw, order) for order in ("little", "big"))
    if version not in (2, VERSION):
        big = swapped in (2, VERSION)
        raise VersionError(
            where,
            expected=f"version 2 or {VERSION} of GGUF, the low byte first",
            received=f"version {swapped}, the high byte first" if big else f"version {version}",
            advice="convert it with llama.cpp's tools",
        )


def _alignment(values: Mapping[str, Any], where: str) -> int:
    found = values.get(ALIGNMENT_KEY, ALIGNMENT)
    fits = isinstance(found, (int, np.integer)) and 0 < found <= _LARGEST_ALIGNMENT
    if not fits or int(found) & (int(found) - 1):
        expected = f"{ALIGNMENT_KEY} of a power of two up to {_LARGEST_ALIGNMENT}"
        raise broken(where, expected, str(found)[:40])
    return int(found)


def _take_array(cursor: Cursor, header: GgufTable, size: int, where: str) -> None:
    name = check_name(cursor.text(), where)
    if name in header.entries:
        raise broken(where, "each array once", f"{name[:80]!r} twice")
    where = f"{where}, array {name[:200]!r}"
    rank = cursor.natural(4)
    if rank > MOST_AXES:
        raise broken(where, f"at most {MOST_AXES} axes", str(rank))
    axes = [cursor.natural(8) for _ in range(rank)][::-1]
    code = cursor.natural(4)
    if code not in _BY_CODE:
        known = f"a type among {one_of(BLOCKS, len(BLOCKS))}"
        raise broken(where, known, OTHERS.get(code, f"type {code}")).advising(
            "convert it with llama.cpp's tools, to Q8_0 for example"
        )
    block = _BY_CODE[code]
    # A byte stores up to two elements.
    shape = check_shape(axes, 1, 2 * size, where)
    if block.elements > 1 and (not shape or shape[-1] % block.elements):
        raise broken(where, f"rows of blocks of {block.elements}", str(shape))
    kind = "" if block.decode is None else block.name
    header.entries[name] = Entry(name, shape, block.dtype, block.stored(shape), kind=kind)
    header.blocks[name] = block
    header.offsets[name] = cursor.natural(8)


def _place(header: GgufTable, at: int, size: int, where: str) -> None:
    """Compute aligned offsets from the start of the file, without overlaps."""
    start = end = at + -at % header.alignment
    ordered = sorted(header.entries.values(), key=lambda e: (header.offsets[e.name], e.stored))
    for entry in ordered:
        offset = header.offsets[entry.name]
        if offset % header.alignment or start + offset < end:
            expected = (
                f"array {entry.name!r} at a multiple of {header.alignment}, from {end - start}"
            )
            raise broken(where, expected, f"offset {offset}")
        header.offsets[entry.name] = start + offset
        end = start + offset + entry.stored
    header.end = end if ordered else at
    if header.end > size:
        raise broken(where, f"{header.end} bytes by the table", str(size))


def broken(where: str, expected: str, received: str) -> FileFormatError:
    """Return the error for a file that violates the format."""
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the file is damaged: download it again",
    )


FORMAT_KEY = "singanet.format"
CHECKSUMS_KEY = "singanet.checksums"
"""The key of a string for each array: its type, a space, its checksum."""
SEALED_KEY, SEAL = "singanet.sealed", b"SNET"
"""The key of a string that marks a sealed file: the bytes before the first array end with the seal
and the checksum of the array table. Programs that rewrite the file copy the string and pad with
zeros."""


class GgufReader(StreamReader):
    """A reader of the arrays in table order; blocks and bfloat16 are read as float32.

    ``values`` are the file's metadata: bools, NumPy scalars, strings, numeric arrays, lists of
    strings.
    """

    format = "gguf"

    def _list(self) -> None:
        header = parse(self._stream, self._size, self.where)
        self.values: dict[str, Any] = header.values
        self.entries = header.entries
        self._places, self._blocks = header.offsets, header.blocks
        ours = self._take_checksums(header)
        filled = header.end + -header.end % header.alignment
        if self._size not in ((filled,) if ours else (header.end, filled)):
            raise broken(self.where, f"{filled} bytes by the table", str(self._size))
        self.metadata = {key: _as_text(value) for key, value in self.values.items()}

    def _take_checksums(self, header: GgufTable) -> bool:
        """Remove our marks from the values; return whether they belong to this file's arrays."""
        mark, sealed = self.values.pop(FORMAT_KEY, None), self.values.pop(SEALED_KEY, None)
        texts = self.values.pop(CHECKSUMS_KEY, None)
        if mark is None:
            return False
        self.version = f"singanet format {check_version(mark, self.where)}"
        if not isinstance(texts, list):
            raise broken(self.where, "a checksum for each array", "none")
        known = [str(text).partition(" ") for text in texts]
        kinds = [block.name for block in self._blocks.values()]
        fits = [kind for kind, _, _ in known] == kinds
        if not (fits if sealed is None else self._is_sealed(header)):
            self.version += REWRITTEN
            return False
        if not fits:
            raise broken(self.where, "a type and a checksum for each array", "other types")
        for (name, entry), (_, _, checksum) in zip(self.entries.items(), known, strict=True):
            self.entries[name] = entry._replace(checksum=checksum or "none")
        return True

    def _is_sealed(self, header: GgufTable) -> bool:
        """Return whether we wrote the file. Errors: `FileFormatError` if the table was changed."""
        begin, end = header.rows
        start = end + -end % header.alignment
        self._stream.seek(begin)
        rows, rest = self._stream.read(end - begin), self._stream.read(start - end)
        seal = rest[-len(SEAL) - SIZE :]
        if not seal.startswith(SEAL):
            return False
        if seal[len(SEAL) :] != Checksum().update(rows).digest():
            raise broken(self.where, "a table with the stored checksum", "another checksum")
        return True

    def _read(self, entry: Entry) -> Array:
        return self._filled(entry)

    def _of_blocks(self, entry: Entry) -> Array | None:
        block = self._blocks[entry.name]
        if len(entry.shape) != 2 or block.elements == 1:
            return None
        raw = np.empty(block.stored(entry.shape), np.uint8)
        self._stream.seek(self._places[entry.name])
        read_exactly(self._stream, bytes_of(raw), f"{self.where}, array {entry.name!r}")
        checksum = Checksum()
        checksum.update(bytes_of(raw))
        check_digest(entry, checksum.digest(), self.where)
        return raw.reshape(entry.shape[0], entry.shape[1] // block.elements, block.nbytes)

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        block, at = self._blocks[entry.name], self._places[entry.name]
        where = f"{self.where}, array {entry.name!r}"
        checksum = Checksum()
        for rows in runs_of_rows(entry.shape, entry.dtype.itemsize):
            shape = run_shape(entry.shape, rows)
            raw = np.empty(block.stored(shape), np.uint8)
            self._stream.seek(at)  # another array may have been read since the piece before
            at += raw.nbytes
            read_exactly(self._stream, bytes_of(raw), where)
            checksum.update(bytes_of(raw))
            if block.decode is None:
                yield raw.view(block.dtype).reshape(shape)
            else:
                yield block.decode(raw.reshape(-1, block.nbytes)).reshape(shape)
            del raw
        check_digest(entry, checksum.digest(), self.where)


def _as_text(value: Any) -> str:
    """Return ``value`` as a string; for an array its length and type."""
    if isinstance(value, (list, np.ndarray)):
        what = value.dtype if isinstance(value, np.ndarray) else "texts or arrays"
        return f"{len(value)} of {what}"
    return str(value).encode("utf-8", "replace").decode()


def interleaved(rows: Array, heads: int) -> Array:
    """Convert ``rows`` from transformers' to llama.cpp's order, as a copy.

    ``rows`` is a weight (heads × features, ...) or a bias; for keys ``heads`` is the number of key
    heads. Errors: `ShapeError` if the number of rows is not ``heads`` times an even number.
    """
    return _swapped_pairs(rows, heads, 2, -1)


def halved(rows: Array, heads: int) -> Array:
    """Convert ``rows`` from llama.cpp's to transformers' order; the inverse of `interleaved`."""
    return _swapped_pairs(rows, heads, -1, 2)


def _swapped_pairs(rows: Array, heads: int, *pairs: int) -> Array:
    if rows.ndim < 1 or heads < 1 or rows.shape[0] % (2 * heads):
        raise ShapeError(
            "rotary rows",
            expected=f"{heads} heads of an even number of rows each",
            received=f"shape {rows.shape}",
            advice="pass a weight (out, in) and its number of heads",
        )
    parts = rows.reshape(heads, *pairs, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(rows.shape)


EIGHTHS = "q8_0"
LONGEST_NAME = 63
"""The maximum bytes of a name in ggml, without the terminating zero."""
_NAMES = {block.dtype: block.name for block in BLOCKS.values() if block.decode is None}
_ROWS = 1 << 13
"""The number of blocks encoded at once, a few hundred kB."""


def write_gguf(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    dtype: StoredType = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Write the table with ``values``, then the arrays.

    ``dtype`` is the type of floats, "float32", "float16", "bfloat16" or "q8_0", or a dict from
    array name to type. With a single type, arrays of one axis stay float32, as in llama.cpp. With
    "q8_0" arrays whose rows are not multiples of 32 do too. In ``values`` ints are written as
    uint32 if they fit, floats as float32, and NumPy scalars and arrays in their own types. Errors:
    `ArgumentError` for names above 63 bytes, other types, or numbers outside a type's range;
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
        replacing(path, nbytes=total_bytes(sources)) as temporary,
        temporary.open("wb") as stream,
        ChecksumThread() as hasher,
    ):
        start = _header(sources, kinds, values, digests, where)
        stream.write(start)
        for k, (source, block) in enumerate(zip(sources, kinds, strict=True)):
            digests[k] = write_pieces(stream, map(bytes_of, source.pieces()), hasher)
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
    """Return the file up to the first array."""
    sums = [f"{block.name} {digest.hex()}" for block, digest in zip(kinds, digests, strict=True)]
    parts, offset = [], 0
    for source, block in zip(sources, kinds, strict=True):
        axes = source.shape[::-1]
        fields = struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, block.code, offset)
        parts.append(packed_text(source.name) + fields)
        offset += block.stored(source.shape)
        offset += -offset % ALIGNMENT
    rows = b"".join(parts)
    seal = SEAL + Checksum().update(rows).digest()
    values = {**values, FORMAT_KEY: FORMAT_VERSION, CHECKSUMS_KEY: sums}
    start = MAGIC + struct.pack("<IQQ", VERSION, len(sources), len(values) + 1)
    start += packed_values(values, where)
    end = len(start) + len(packed_values({SEALED_KEY: ""}, where)) + len(rows)
    # Padded so that the alignment gap after it has room for the seal.
    filling = " " * (-(end + len(seal)) % ALIGNMENT)
    return start + packed_values({SEALED_KEY: filling}, where) + rows + seal


def _stored(sources: Sequence[Source], dtype: StoredType, where: str) -> list[Source]:
    """Return ``sources`` in the types to write."""
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
                # The scale is float16.
                if not (np.abs(piece).max(initial=0.0) < 65504 * 127):
                    raise ArgumentError(
                        f"{where}, {source.name!r}",
                        expected="numbers below 8,319,008 for blocks Q8_0",
                        received=f"{piece[~(np.abs(piece) < 65504 * 127)][0]}",
                        advice="write it as float32, or check why it is so large",
                    )
                yield eighths(piece)

    def fetch() -> Array:
        return np.concatenate([np.empty((0, 34), np.uint8), *parts()])

    return replace(source, dtype=np.dtype("u1"), kind="Q8_0", fetch=fetch, parts=parts)


def _kind(source: Source, where: str) -> BlockType:
    """Return the type of ``source`` in the file. Errors: `ArgumentError` if the format has none."""
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
