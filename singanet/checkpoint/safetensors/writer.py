"""Writing safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np

from singanet.base.files import path_of, replacing
from singanet.checkpoint.checksum import SIZE, Beside, Checksum
from singanet.checkpoint.entry import Entry, Source, total_bytes
from singanet.checkpoint.halves import StoredType, stored_as
from singanet.checkpoint.safetensors.header import CHECKSUMS, DTYPES, LONGEST, METADATA, TABLE
from singanet.checkpoint.streaming import bytes_of, write_pieces
from singanet.checkpoint.version import FORMAT_VERSION, KEY
from singanet.errors import ArgumentError

_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def write_safetensors(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    dtype: StoredType = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the table, then the arrays, those of wide numbers first so that all are aligned.

    Floats are written as ``dtype``. Format version and checksums stand in the metadata, which
    other readers pass over, beside the texts of ``metadata``. They come last in the table: other
    programs, which may copy them beside arrays of their own, have them first. Errors:
    `ArgumentError` for a type the format lacks, a name it reserves, or a table above 8 MiB;
    `FileAccessError`.
    """
    path = path_of(path)
    where = f"safetensors file {str(path)!r}"
    sources = stored_as(sources, dtype, where)
    _check(where, sources)
    checksums = {source.name: bytes(SIZE).hex() for source in sources}
    ordered = sorted(sources, key=lambda source: -source.dtype.itemsize)
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
        replacing(path, nbytes=total_bytes(sources)) as beside_path,
        beside_path.open("wb") as stream,
        Beside() as beside,
    ):
        stream.write(start)
        for source in ordered:
            digest = write_pieces(stream, map(bytes_of, source.pieces()), beside)
            checksums[source.name] = digest.hex()
        stream.seek(0)
        stream.write(header({**metadata, CHECKSUMS: json.dumps(checksums)}, rows))


def table(sources: Sequence[Source | Entry], ordered: Sequence[Source | Entry]) -> str:
    """The rows of ``sources`` for `header`, of whose data ``ordered`` is the order."""
    offsets, end = {}, 0
    for source in ordered:
        begin, end = end, end + source.nbytes
        offsets[source.name] = [begin, end]
    rows = {
        source.name: {
            "dtype": source.kind or _NAMES[source.dtype],
            "shape": source.shape,
            "data_offsets": offsets[source.name],
        }
        for source in sources
    }
    return _json(rows)


def header(metadata: Mapping[str, str], rows: str) -> bytes:
    """The table of ``metadata`` and `table`'s ``rows``, padded so that the data start aligned."""
    # One object of both: the metadata are put in behind the rows.
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
