"""Conversion, comparison and inspection of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.progress import progress
from singanet.checkpoint.entry import Entry, Source
from singanet.checkpoint.formats import FORMATS, format_for, open_state, write_state
from singanet.checkpoint.gguf import GgufReader
from singanet.checkpoint.halves import BFLOAT
from singanet.checkpoint.matching import aligned, weights
from singanet.checkpoint.reader import Reader
from singanet.errors import ArgumentError, brief, one_of
from singanet.types import Array

_TYPED = ("safetensors", "sharded", "gguf")
"""Formats that can convert floats to a dtype."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    net: Any = None,
    format: str | None = None,
    dtype: str | None = None,
) -> str:
    """Write the arrays of ``source`` to ``target``, one at a time; return a summary.

    Errors: `ArgumentError` for a Keras file without a net; the errors of reading and writing.

    Args:
        source: Path of a checkpoint in any format.
        target: Path to write.
        net: Net, or any object with `load` and `save`, that supplies names and layouts: older names
            become current ones, and Keras files can be read and written.
        format: Name of a format, such as "npz". None follows the suffix of ``target``.
        dtype: Type of floats in safetensors, shards and GGUF, "float32", "float16" or "bfloat16",
            and "q8_0" for GGUF. None keeps the types of ``source``.
    """
    name = format_for(target, format)
    if dtype is not None and (net is not None or name not in _TYPED):
        raise ArgumentError(
            f"convert to {str(target)!r}, argument dtype",
            expected=f"a file of {one_of(_TYPED)}, without a net",
            received=brief(name) + (" of a net" if net is not None else ""),
            advice="omit dtype, or convert the result again",
        )
    if net is not None:
        report = net.load(source)
        net.save(target, format=name)
        return f"{target}: {name}; {report.summary()}"
    with open_state(source) as reader:
        _expect_plain(reader, name)
        sources = [_source(reader, entry.name) for entry in reader.entries.values()]
        write_state(target, sources, name, **_options(reader, name, dtype))
    return f"{target}: {name}; {len(sources)} arrays from {reader.format}"


def _source(reader: Reader, name: str) -> Source:
    entry = reader.entries[name]
    return Source(name, entry.shape, np.dtype(entry.dtype), lambda: reader.read(name))


def _options(reader: Reader, target: str, dtype: str | None) -> dict[str, Any]:
    """Return the writer's options: dtypes, and the metadata from one GGUF file to another."""
    if target not in _TYPED:
        return {}
    entries = reader.entries.values()
    kept = {entry.name: "bfloat16" for entry in entries if entry.kind == BFLOAT}
    options: dict[str, Any] = {"dtype": dtype or kept or None}
    if target == "gguf" and isinstance(reader, GgufReader):
        options["values"] = reader.values
    return options


def _expect_plain(reader: Reader, target: str) -> None:
    if reader._foreign_layout or target.startswith("keras"):
        plain = [name for name in FORMATS if not name.startswith("keras")]
        raise ArgumentError(
            f"convert of {str(Path(reader.path))!r}",
            expected=f"a net for Keras' layouts, or {one_of(plain)} on both sides",
            received="none",
            advice="name the model (--model), or pass net=",
        )


_PIECE = 1 << 18


@dataclass(frozen=True)
class Difference:
    """Whether all arrays are equal bit for bit, and a table of the others."""

    equal: bool
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """Compare two checkpoints in any formats, one array at a time.

    If one is a training or a whole model and the other has weights alone, the net's arrays are
    compared. Errors: as for `open_state` and `Reader.read`.

    Args:
        a: Path of a checkpoint.
        b: Path of the other one.
    """
    rows: list[tuple[object, ...]] = [("name", "in A", "in B", "differ", "most")]
    same = 0
    with open_state(a) as first, open_state(b) as second:
        some: Mapping[str, Entry] = first.entries
        others: Mapping[str, Entry] = second.entries
        if (weights(some) is some) != (weights(others) is others):
            some, others = weights(some), weights(others)
        for name in progress({**some, **others}, "diff"):
            here, there = some.get(name), others.get(name)
            if here is None or there is None or not _comparable(here, there):
                rows.append((name, _described(here), _described(there), "", ""))
                continue
            count, most = _compare(first.read(here.name), second.read(there.name))
            same += not count
            if count:
                rows.append((name, _described(here), _described(there), count, f"{most:.6g}"))
    equal = len(rows) == 1
    summary = f"{same} arrays equal, {len(rows) - 1} not"
    return Difference(equal, summary if equal else f"{aligned(rows)}\n{summary}")


def _comparable(here: Entry, there: Entry) -> bool:
    return here.shape == there.shape and here.dtype == there.dtype


def _described(entry: Entry | None) -> str:
    return "-" if entry is None else f"{entry.dtype}{entry.shape}"


def _compare(here: Array, there: Array) -> tuple[int, float]:
    """Return the number of elements that differ in their bits, and the largest difference."""
    count, most = 0, 0.0
    width = here.dtype.itemsize
    for start in range(0, here.size, _PIECE):
        x, y = (a.reshape(-1)[start : start + _PIECE] for a in (here, there))
        differ = (x.view("u1").reshape(-1, width) != y.view("u1").reshape(-1, width)).any(axis=1)
        if differ.any():
            count += int(differ.sum())
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = np.abs(x[differ].astype(np.float64) - y[differ].astype(np.float64))
            most = max(most, float(np.nanmax(gaps, initial=0.0)))
    return count, most


_HEAD = ("name", "shape", "type", "bytes", "checksum")
_VALUES = ("min", "max", "mean", "NaN")


def inspect(path: str | os.PathLike[str], format: str | None = None, values: bool = True) -> str:
    """Return format, version and a table of the arrays of a checkpoint as text.

    Errors: as for `open_state` and `Reader.read`.

    Args:
        path: Path of the checkpoint.
        format: Name of its format. None detects it from the content.
        values: Whether to read every array, one at a time, verify its checksum and show its least,
            greatest and mean value; not for JSON texts. If False, only the file's table is read.
    """
    with open_state(path, format) as reader:
        rows: list[tuple[object, ...]] = [_HEAD + (_VALUES if values else ())]
        for name in reader._names_in_turn() if values else reader.entries:
            entry = reader.entries[name]
            about: tuple[object, ...] = (entry.shape, entry.dtype)
            described: tuple[object, ...] = ()
            if values:
                array = reader.read(name)
                if _is_text(array):
                    about, described = ("text", "JSON"), ("",) * len(_VALUES)
                else:
                    found = statistics(array)
                    numbers = (found.least, found.greatest, found.mean)
                    described = (*(f"{number:.6g}" for number in numbers), found.nans)
                del array  # before the next one is read
            rows.append((name, *about, entry.nbytes, entry.checksum or "-", *described))
        total = sum(entry.nbytes for entry in reader.entries.values())
        lines = [
            f"{reader.path}: {reader.format}, {reader.version or 'no version of ours'}",
            *(f"{key}: {text[:200]}" for key, text in reader.metadata.items()),
            aligned(rows),
            f"{len(reader.entries)} arrays, {total:,} bytes",
        ]
    return "\n".join(lines)


def _is_text(array: Array) -> bool:
    """Return whether ``array`` is a JSON object as bytes, as descriptions of nets are."""
    if array.dtype != np.uint8 or array.ndim != 1:
        return False
    if not (array[:2].tobytes() == b'{"' and array[-1:].tobytes() == b"}"):
        return False
    try:
        return "\0" not in array.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False


@dataclass(frozen=True)
class Statistics:
    """Minimum, maximum and mean of the elements without NaN, and the number of NaN."""

    least: float
    greatest: float
    mean: float
    nans: int


def statistics(array: Array) -> Statistics:
    """Return the statistics of ``array``; all NaN if no element is a number."""
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
