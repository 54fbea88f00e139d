"""What is in a checkpoint, as text."""

from __future__ import annotations

import os

from singanet.checkpoint.formats import open_state
from singanet.checkpoint.report import aligned
from singanet.checkpoint.statistics import statistics

_HEAD = ("name", "shape", "type", "bytes", "checksum")
_VALUES = ("min", "max", "mean", "NaN")


def inspect(path: str | os.PathLike[str], format: str | None = None, values: bool = True) -> str:
    """Format, version and a table of the arrays of the checkpoint at ``path``.

    Without ``values`` only the table is read, however large the file; with them every array is,
    one at a time, and its checksum compared. Errors: as for `open_state` and `Reader.read`.
    """
    with open_state(path, format) as reader:
        rows: list[tuple[object, ...]] = [_HEAD + (_VALUES if values else ())]
        for name, entry in reader.entries.items():
            row: tuple[object, ...] = (
                name,
                entry.shape,
                entry.dtype,
                entry.nbytes,
                entry.checksum or "-",
            )
            if values:
                found = statistics(reader.read(name))
                numbers = (found.least, found.greatest, found.mean)
                row += (*(f"{number:.6g}" for number in numbers), found.nans)
            rows.append(row)
        total = sum(entry.nbytes for entry in reader.entries.values())
        lines = [
            f"{reader.path}: {reader.format}, {reader.version or 'no version of ours'}",
            *(f"{key}: {text[:200]}" for key, text in reader.metadata.items()),
            aligned(rows),
            f"{len(reader.entries)} arrays, {total:,} bytes",
        ]
    return "\n".join(lines)
