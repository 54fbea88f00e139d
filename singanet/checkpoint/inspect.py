"""The contents of a checkpoint as text."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from singanet.checkpoint.formats import open_state
from singanet.checkpoint.report import aligned
from singanet.types import Array

_HEAD = ("name", "shape", "type", "bytes", "checksum")
_PIECE = 1 << 18
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


@dataclass(frozen=True)
class Statistics:
    """Least, greatest and mean of the numbers, and how many are NaN; those apart from the rest."""

    least: float
    greatest: float
    mean: float
    nans: int


def statistics(array: Array) -> Statistics:
    """The statistics of ``array``; NaN for each where no number is left."""
    flat = array.reshape(-1)
    least, greatest, total, count, nans = np.inf, -np.inf, 0.0, 0, 0
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE].astype(np.float64)
        kept = piece[~np.isnan(piece)]
        nans += piece.size - kept.size
        if kept.size:
            least, greatest = min(least, float(kept.min())), max(greatest, float(kept.max()))
            with np.errstate(invalid="ignore", over="ignore"):  # the mean of both infinities
                total += float(kept.sum())
            count += kept.size
    if not count:
        return Statistics(np.nan, np.nan, np.nan, nans)
    return Statistics(least, greatest, total / count, nans)
