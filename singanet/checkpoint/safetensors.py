"""Safetensors files, read and written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import MAX_RANK, Budget, read_json
from singanet.base.files import explained, path_of, replacing
from singanet.base.heap import populated
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    KEY,
    MAX_ARRAYS,
    PIECE,
    REWRITTEN,
    RUN,
    SIZE,
    SMALL,
    Checksum,
    ChecksumThread,
    Entry,
    Source,
    as_bools,
    bytes_of,
    check_digest,
    check_names,
    check_shape,
    check_unique,
    check_version,
    checksum_of,
    checksums_of,
    read_bytes,
    read_exactly,
    run_shape,
    runs_of_rows,
    runs_of_small,
    too_many,
    truncated,
    write_pieces,
)
from singanet.checkpoint.halves import BFLOAT, StoredType, stored_as, widen
from singanet.checkpoint.reader import StreamReader
from singanet.errors import ArgumentError, FileFormatError
from singanet.types import Array

LONGEST = 8 << 20
"""The maximum bytes of a table, for 80,000 arrays; a longer one could exhaust the memory."""
METADATA = "__metadata__"
CHECKSUMS, TABLE = "checksums", "singanet_table"
"""The keys of the checksums of the arrays and of the table."""
DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
ChecksumsIn = Callable[[dict[str, str]], dict[str, str] | None]
_TYPES = {name: (np.dtype(code), np.dtype(code).itemsize, "") for name, code in DTYPES.items()}
_TYPES[BFLOAT] = np.dtype("<f4"), 2, BFLOAT
"""By its name in files the dtype in memory, the bytes of an element, and `Entry.kind`."""


def parse(
    text: bytes, size: int, where: str, checksums_in: ChecksumsIn = lambda metadata: None
) -> tuple[dict[str, str], list[tuple[int, Entry]]]:
    """Return the metadata, and offset and entry of each array, for ``size`` bytes of data.

    ``checksums_in(metadata)`` takes the checksums out of our files' metadata.

    Errors: `FileFormatError` for violations of the format: gaps, overlaps, trailing bytes, repeated
    names, unknown types.
    """
    if not text.startswith(b"{"):
        raise broken(where, "a table that starts with '{'", repr(text[:8]))
    budget = Budget(len(text) + 8 + size, partial(broken, where))
    table = read_json(text, budget, "a table")
    if not _are_once(table, text):
        del table  # or there were two
        table = json.loads(text, object_pairs_hook=partial(_unique, where))
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not {*map(type, metadata.values())} <= {str}:
        raise broken(where, "metadata from string to string", "other values")
    if len(table) > MAX_ARRAYS:
        raise too_many(where)
    check_names(table, where)
    found = _entries(table, size, where, checksums_in(metadata))
    end = 0
    for offset, stored, entry in sorted(found):
        if offset != end:
            raise broken(where, f"array {entry.name!r} at byte {end}", f"byte {offset}")
        end += stored
    if end != size:
        raise broken(where, f"{end} bytes of data by the table", f"{size}")
    return metadata, [(offset, entry) for offset, _, entry in found]


def _are_once(table: Mapping[str, Any], text: bytes) -> bool:
    """Return whether certainly no key in ``text`` occurs twice; ``table`` is what it says.

    A colon follows each key; others are in names and metadata. A call of Python for each array
    takes longer than counting them.
    """
    try:
        about = table.get(METADATA, {})
        texts = "".join([*table, *about, *about.values()])
        keys = len(table) + sum(map(len, table.values()))
    except (AttributeError, TypeError):
        return False
    # An escaped colon is in a text, but not in the bytes.
    return b"\\u" not in text and text.count(b":") - texts.count(":") == keys


def _unique(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        check_unique((name for name, _ in pairs), where)
    return made


def _entries(
    table: Mapping[str, Any], size: int, where: str, checksums: Mapping[str, str] | None
) -> list[tuple[int, int, Entry]]:
    """Return offset, bytes and entry of each array of ``table``."""
    if not _are_plain(table):
        name, item = next(pair for pair in table.items() if not _are_plain(dict([pair])))
        raise broken(
            f"{where}, array {name!r}",
            "a dtype, and a shape and two data_offsets of natural numbers",
            str(item)[:120],
        )
    sums, otherwise = ({}, "") if checksums is None else (checksums, "none")
    found = []
    for name, item in table.items():
        try:
            dtype, width, word = _TYPES[item["dtype"]]
        except (KeyError, TypeError):
            raise broken(
                f"{where}, array {name!r}",
                f"a type among {', '.join(_TYPES)}",
                repr(item.get("dtype"))[:60],
                "write the file again with a supported type: PyTorch's tensor.float() gives F32",
            ) from None
        axes, (begin, end) = tuple(item["shape"]), item["data_offsets"]
        # A shape of just these bytes of the file cannot be too large.
        claimed = math.prod(axes) * width if len(axes) <= MAX_RANK else 0
        if not 0 < claimed == end - begin or end > size:
            check_shape(axes, width, size, f"{where}, array {name!r}")
            if end - begin != claimed or end > size:
                raise broken(
                    f"{where}, array {name!r}",
                    f"the bytes of {axes} of {item['dtype']}",
                    f"offsets {begin} to {end}",
                )
        entry = Entry(name, axes, dtype, claimed, sums.get(name, otherwise), word)
        found.append((begin, claimed, entry))
    return found


def _are_plain(table: Mapping[str, Any]) -> bool:
    """Return whether all shapes are lists of natural numbers, and all offsets of two integers.

    The numbers are checked together: one by one takes as long as reading small arrays.
    """
    try:
        shapes = [item["shape"] for item in table.values()]
        offsets = [item["data_offsets"] for item in table.values()]
        sizes, places = [*chain.from_iterable(shapes)], [*chain.from_iterable(offsets)]
    except (KeyError, TypeError):
        return False
    # JSON's true is a bool.
    return (
        {*map(type, shapes), *map(type, offsets)} <= {list}
        and {*map(type, sizes), *map(type, places)} <= {int}
        and {*map(len, offsets)} <= {2}
        and min(sizes, default=0) >= 0
    )


_DAMAGED = "the file is damaged: copy it again, or use an earlier checkpoint"


def broken(where: str, expected: str, received: str, advice: str = _DAMAGED) -> FileFormatError:
    """Return the error for a table that violates the format or is unsupported."""
    return FileFormatError(where, expected=expected, received=received, advice=advice)


class SafetensorsReader(StreamReader):
    """A reader in table order; bfloat16 is read as float32, or with ``words`` as uint16."""

    format = "safetensors"

    def __init__(self, path: Path, words: bool = False) -> None:
        self._words = words
        super().__init__(path)

    def _list(self) -> None:
        # Past the buffer: filling it would take as long as all small arrays that follow.
        unbuffered: Any = self._stream.raw  # type: ignore[attr-defined]
        start = unbuffered.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > self._size - 8:
            raise truncated(self.where, f"a table of {length} bytes", f"{self._size} in all")
        if length > LONGEST:
            raise broken(self.where, f"a table of at most {LONGEST} bytes", str(length))
        data = 8 + length
        table = bytearray(length)
        read_exactly(unbuffered, memoryview(table), self.where)
        raw = bytes(table)
        self.metadata, found = parse(
            raw, self._size - data, self.where, partial(self._our_checksums, raw)
        )
        self._places = {}
        for offset, entry in found:
            if entry.kind == BFLOAT and self._words:
                entry = entry._replace(dtype=np.dtype("<u2"))
            self.entries[entry.name], self._places[entry.name] = entry, data + offset
        for name, kept in self._share(self.metadata).items():
            self._places[name] = self._places[kept]

    def _our_checksums(self, raw: bytes, metadata: dict[str, str]) -> dict[str, str] | None:
        """Remove our checksums from the ``metadata`` and return them, None for other files.

        Another program may have copied them to other arrays; it writes its metadata before the rows
        in ``raw``. Files of earlier versions have no checksum of the rows.
        """
        mark, sealed = metadata.pop(KEY, None), metadata.pop(TABLE, None)
        if mark is None:
            return None
        self.version = f"singanet format {check_version(mark, self.where)}"
        text = metadata.pop(CHECKSUMS, "").encode("utf-8", "replace")
        rows, _, _ = raw.rpartition(b'"%s":' % METADATA.encode())
        if sealed is not None and b'"data_offsets":' not in rows and b'"data_offsets":' in raw:
            self.version += REWRITTEN
            return None
        if sealed not in (None, Checksum().update(rows.removesuffix(b",") + b"}").text()):
            raise broken(self.where, f"a table with the checksum {sealed}", "another checksum")
        budget = Budget(self._size, partial(broken, self.where))
        checksums = read_json(text, budget, "a checksum for each array")
        if not isinstance(checksums, dict) or not {*map(type, checksums.values())} <= {str}:
            raise broken(self.where, "a checksum for each array", "another value")
        return checksums

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """Yield each name with its array; small arrays that follow each other share memory."""
        parts = (
            (entry, self._places[name], RUN if entry.kind and self._widens(entry) else entry.stored)
            for name, entry in self.entries.items()
        )
        for run in runs_of_small(parts):
            if len(run) == 1:
                yield run[0].name, self.read(run[0].name)
            else:
                yield from self._read_run(run)

    def _read_run(self, run: list[Entry]) -> Iterator[tuple[str, Array]]:
        sizes = [entry.stored for entry in run]
        whole = np.empty(sum(sizes), np.uint8)
        with explained(self.path, "read"):
            self._stream.seek(self._places[run[0].name])
            read_exactly(self._stream, bytes_of(whole), self.where)
        checksums = [entry.checksum for entry in run]
        digests = checksums_of(bytes_of(whole), sizes) if any(checksums) else [b""] * len(run)
        intact = [digest.hex() for digest in digests] == checksums
        start = 0
        for entry, digest in zip(run, digests, strict=True):
            if not intact:
                check_digest(entry, digest, self.where)
            # A third of the time of a slice, viewed and in shape.
            array: Array = np.ndarray(entry.shape, entry.dtype, whole, start)
            start += entry.stored
            if not array.flags.aligned:
                array = array.copy()
            yield entry.name, as_bools(array) if entry.dtype.kind == "b" else array

    def _read(self, entry: Entry) -> Array:
        if self._widens(entry):
            return self._filled(entry)
        array = populated(np.empty(entry.shape, entry.dtype))
        self._stream.seek(self._places[entry.name])
        data = bytes_of(array)
        if not entry.checksum:
            read_exactly(self._stream, data, self.where)
        elif len(data) > PIECE:
            digest = read_bytes(self._stream, data, self._hasher, self.where)
            check_digest(entry, digest, self.where)
        else:
            read_exactly(self._stream, data, self.where)
            check_digest(entry, checksum_of(data), self.where)
        return as_bools(array)

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        where = f"{self.where}, array {entry.name!r}"
        widens, at = self._widens(entry), self._places[entry.name]
        stored = np.dtype("<u2") if widens else entry.dtype
        checksum = Checksum()
        for rows in runs_of_rows(entry.shape, entry.dtype.itemsize):
            piece = np.empty(run_shape(entry.shape, rows), stored)
            self._stream.seek(at)  # another array may have been read since the piece before
            at += piece.nbytes
            read_exactly(self._stream, bytes_of(piece), where)
            checksum.update(bytes_of(piece))
            yield widen(piece) if widens else as_bools(piece)
            del piece
        check_digest(entry, checksum.digest(), self.where)

    def _widens(self, entry: Entry) -> bool:
        return entry.kind == BFLOAT and not self._words


_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def write_safetensors(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    dtype: StoredType = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the table, then the arrays, widest dtypes first so that all are aligned.

    Floats are written as ``dtype``. The metadata contain ``metadata``, and the format version and
    checksums, which other readers ignore. They are the last entry of the table; programs that copy
    them to their own arrays write them first. Errors: `ArgumentError` for a type the format lacks,
    a name it reserves, or a table above 8 MiB; `FileAccessError`.
    """
    path = path_of(path)
    where = f"safetensors file {str(path)!r}"
    sources = stored_as(sources, dtype, where)
    _check(where, sources)
    checksums = {source.name: bytes(SIZE).hex() for source in sources}
    ordered = sorted(sources, key=lambda source: -source.dtype.itemsize)
    sizes = [source.nbytes for source in ordered]
    rows = table(sources, ordered)
    sealed = Checksum().update(rows.encode()).text()
    metadata = {**(metadata or {}), KEY: str(FORMAT_VERSION), TABLE: sealed}
    start = header({**metadata, CHECKSUMS: json.dumps(checksums)}, rows)
    if len(start) > LONGEST:
        raise ArgumentError(
            where,
            expected=f"a table of names and shapes of at most {LONGEST} bytes",
            received=str(len(start)),
            advice="shorten the names, or use hdf5",
        )
    with (
        replacing(path, nbytes=sum(sizes)) as temporary,
        temporary.open("wb") as stream,
        ChecksumThread() as hasher,
    ):
        # The table comes last, since it has the checksums.
        stream.seek(len(start))
        starts = accumulate([0, *sizes])
        for run in runs_of_small(zip(ordered, starts, sizes, strict=False)):
            if run[0].nbytes > SMALL:
                digests = [write_pieces(stream, map(bytes_of, run[0].pieces()), hasher)]
            else:
                parts = [bytes_of(source.array()) for source in run]
                data = b"".join(parts)
                stream.write(data)
                digests = checksums_of(memoryview(data), [*map(len, parts)])
                del data, parts
            for source, digest in zip(run, digests, strict=True):
                checksums[source.name] = digest.hex()
        stream.seek(0)
        stream.write(header({**metadata, CHECKSUMS: json.dumps(checksums)}, rows))


def table(sources: Sequence[Source | Entry], ordered: Sequence[Source | Entry]) -> str:
    """Return the rows of ``sources`` for `header`; ``ordered`` is the order of their data."""
    offsets, end = {}, 0
    for source in ordered:
        begin, end = end, end + source.nbytes
        offsets[source.name] = f"[{begin},{end}]"
    # In 0.6 of the time of JSON's encoder.
    rows = [
        f'{_quoted(each.name)}:{{"dtype":"{each.kind or _NAMES[each.dtype]}",'
        f'"shape":[{",".join(map(str, each.shape))}],"data_offsets":{offsets[each.name]}}}'
        for each in sources
    ]
    return f"{{{','.join(rows)}}}"


def header(metadata: Mapping[str, str], rows: str) -> bytes:
    """Return the table of ``metadata`` and ``rows``, padded so that the data are aligned."""
    # The metadata become the last entry of the JSON object.
    text = (rows[:-1] + "," * (rows != "{}") + _json({METADATA: dict(metadata)})[1:]).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _check(where: str, sources: Sequence[Source]) -> None:
    for source in sources:
        if source.dtype not in _NAMES or source.name == METADATA:
            raise ArgumentError(
                f"{where}, array {source.name!r}",
                expected=f"a name other than {METADATA!r} and a type among "
                + ", ".join(str(dtype) for dtype in _NAMES),
                received=str(source.dtype),
                advice="rename or convert the array, or use hdf5 or npz",
            )
