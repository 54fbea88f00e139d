"""The JSON table at the start of a safetensors file."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from singanet.base.budget import Budget, read_json
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.halves import BFLOAT
from singanet.checkpoint.names import MAX_ARRAYS, check_name, check_unique
from singanet.checkpoint.streaming import check_shape
from singanet.errors import FileFormatError

LONGEST = 8 << 20
"""Room for 80,000 arrays; a longer table of tiny objects could fill the memory."""
METADATA = "__metadata__"
CHECKSUMS, TABLE = "checksums", "singanet_table"
"""Of each array's bytes, and of the table of names, types and places."""
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
_TYPES = {**{name: np.dtype(code) for name, code in DTYPES.items()}, BFLOAT: np.dtype("<f4")}


def parse(text: bytes, size: int, where: str) -> tuple[dict[str, str], list[tuple[int, Entry]]]:
    """The metadata, and for each array its offset and entry; ``size`` bytes of data.

    Errors: `FileFormatError` for whatever the format forbids: holes, overlaps, bytes left over,
    names twice, unknown types.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs) or len(pairs) > MAX_ARRAYS:
            check_unique((name for name, _ in pairs), where)
        return made

    if not text.startswith(b"{"):
        raise broken(where, "a table that starts with '{'", repr(text[:8]))
    budget = Budget(len(text) + 8 + size, partial(broken, where))
    table = read_json(text, budget, "a table", unique)
    metadata = {}
    if METADATA in table:
        metadata = table.pop(METADATA)
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()
        ):
            raise broken(where, "metadata from text to text", "other values")
    found = [_entry(check_name(name, where), item, size, where) for name, item in table.items()]
    end = 0
    for offset, entry in sorted(found, key=lambda item: (item[0], item[1].stored)):
        if offset != end:
            raise broken(where, f"array {entry.name!r} at byte {end}", f"byte {offset}")
        end += entry.stored
    if end != size:
        raise broken(where, f"{end} bytes of data, as the table says", f"{size}")
    return dict(metadata), found


def _entry(name: str, item: Any, size: int, where: str) -> tuple[int, Entry]:
    where = f"{where}, array {name!r}"
    if not isinstance(item, dict):
        raise broken(where, "dtype, shape and data_offsets", str(item)[:60])
    kind = str(item.get("dtype"))
    shape, offsets = _naturals(item.get("shape")), _naturals(item.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise broken(where, "shape and offsets of whole numbers", str(item)[:120])
    if kind not in _TYPES:
        advice = "write the file again in one of them: tensor.float() of PyTorch gives F32"
        raise broken(where, f"a type among {', '.join(_TYPES)}", repr(kind)[:60], advice)
    dtype = _TYPES[kind]
    width = 2 if kind == BFLOAT else dtype.itemsize
    axes = check_shape(shape, width, size, where)
    begin, end = offsets
    wanted = Entry(name, axes, dtype, end - begin, kind=BFLOAT if kind == BFLOAT else "")
    if end - begin != wanted.nbytes * width // dtype.itemsize or end > size:
        raise broken(where, f"the bytes of {axes} of {kind}", f"offsets {begin} to {end}")
    return begin, wanted


def _naturals(value: Any) -> list[int] | None:
    """``value`` if it is a list of whole numbers, none negative."""
    if not isinstance(value, list):
        return None
    for part in value:
        if type(part) is not int or not 0 <= part < 1 << 62:  # JSON's true is none
            return None
    return value


_DAMAGED = "the file is damaged: copy it again, or use an earlier checkpoint"


def broken(where: str, expected: str, received: str, advice: str = _DAMAGED) -> FileFormatError:
    """The error for a table that is not as the format wants it, or not as we know it."""
    return FileFormatError(where, expected=expected, received=received, advice=advice)
