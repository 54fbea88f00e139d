"""The beginning of a GGUF file: its values, and where each array is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from singanet.base.budget import Budget
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.gguf.blocks import BLOCKS, OTHERS, BlockType
from singanet.checkpoint.gguf.values import Cursor
from singanet.checkpoint.names import check_name, check_unique
from singanet.checkpoint.streaming import check_shape
from singanet.errors import FileFormatError, VersionError, one_of

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT, ALIGNMENT_KEY = 32, "general.alignment"
MOST_AXES = 4
_LARGEST_ALIGNMENT = 1 << 20
_MOST_PARTS = 4_000_000
"""Words and merges of a tokenizer, one by one; the largest published have 700,000."""
_BY_CODE = {block.code: block for block in BLOCKS.values()}


@dataclass
class GgufTable:
    """Values and arrays in the file's order; offsets are from the file's beginning."""

    values: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, BlockType] = field(default_factory=dict)
    end: int = 0
    """Of the last array, without what fills up to ``alignment``."""
    alignment: int = ALIGNMENT
    rows: tuple[int, int] = (0, 0)
    """Where the rows of arrays begin and end."""


def parse(stream: BinaryIO, size: int, where: str) -> GgufTable:
    """The table of the file of ``size`` bytes that ``stream`` has, from its beginning.

    Errors: `VersionError`; `FileFormatError` for what is damaged or too large, arrays that overlap,
    and types that are not read.
    """
    cursor = Cursor(stream, size, Budget(size, partial(broken, where), _MOST_PARTS), where)
    if cursor.take(4) != MAGIC:
        raise broken(where, f"a file that begins with {MAGIC!r}", "another")
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
        raise broken(where, "a model in one file", f"one of {split} parts").advising(
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
    version, turned = (int.from_bytes(raw, order) for order in ("little", "big"))
    if version not in (2, VERSION):
        big = turned in (2, VERSION)
        raise VersionError(
            where,
            expected=f"version 2 or {VERSION} of GGUF, the low byte first",
            received=f"version {turned}, the high byte first" if big else f"version {version}",
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
    # A byte has up to two elements.
    shape = check_shape(axes, 1, 2 * size, where)
    if block.elements > 1 and (not shape or shape[-1] % block.elements):
        raise broken(where, f"rows of blocks of {block.elements}", str(shape))
    kind = "" if block.decode is None else block.name
    header.entries[name] = Entry(name, shape, block.dtype, block.stored(shape), kind=kind)
    header.blocks[name] = block
    header.offsets[name] = cursor.natural(8)


def _place(header: GgufTable, at: int, size: int, where: str) -> None:
    """Offsets from the file's beginning, aligned, none over another's bytes."""
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
        raise broken(where, f"{header.end} bytes, as the table says", str(size))


def broken(where: str, expected: str, received: str) -> FileFormatError:
    """The error for a file that is not as the format wants it."""
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the file is damaged: get it again",
    )
