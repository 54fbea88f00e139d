"""16-bit floats: float16, and bfloat16, which NumPy represents as uint16 words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from singanet.errors import ArgumentError, brief, one_of
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source

BFLOAT = "BF16"
"""The ``kind`` of an `Entry` or `Source` in bfloat16."""
FLOATS = ("float32", "float16", "bfloat16")
StoredType: TypeAlias = str | Mapping[str, str] | None
"""One of `FLOATS` for all floats, or a dict by array name; other arrays keep their type."""

_PIECE = 1 << 18


def widen(words: Array) -> Array:
    """Convert bfloat16, as uint16 ``words``, to float32 in pieces that need little memory."""
    out = np.empty(words.shape, np.float32)
    bits, flat = out.reshape(-1).view(np.uint32), words.reshape(-1)
    for start in range(0, len(flat), _PIECE):
        piece = slice(start, start + _PIECE)
        bits[piece] = flat[piece].astype(np.uint32) << 16
    return out


def narrow(values: Array, xp: Any = np) -> Array:
    """Convert float32 ``values`` of ``xp`` to bfloat16, as uint16 words, rounded to nearest even.

    Results of `widen` are converted back to the same bits, NaN payloads included; every NaN stays a
    NaN.
    """
    bits = xp.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: Array = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    nan = xp.isnan(values)
    # On a device the test would make the host wait.
    if xp is not np or nan.any():
        # Rounding could carry into the exponent, or lose a payload in the lower half.
        lost = ((bits & 0xFFFF) != 0).astype(np.uint32)
        rounded = xp.where(nan, (bits >> 16 | lost << 6).astype(np.uint16), rounded)
    return rounded


def stored_as(sources: Sequence[Source], dtype: StoredType, where: str) -> list[Source]:
    """Return ``sources`` with their floats as ``dtype``, converted in pieces when written.

    Errors: `ArgumentError` for another type, and during writing if a finite number overflows.
    """
    expect_types(dtype, FLOATS, where)
    if dtype is None:
        return list(sources)
    if isinstance(dtype, Mapping):
        return [_as(source, dtype.get(source.name), where) for source in sources]
    return [_as(source, dtype, where) for source in sources]


def expect_types(dtype: StoredType, known: Sequence[str], where: str) -> None:
    """Errors: `ArgumentError` if ``dtype`` is or contains a type outside ``known``."""
    types = dtype.values() if isinstance(dtype, Mapping) else [] if dtype is None else [dtype]
    for name in types:
        if name not in known:
            raise ArgumentError(
                f"{where}, argument dtype",
                expected=f"{one_of(known)}, or a dict from array to type",
                received=brief(name)[:60],
                advice="omit it to write arrays in their own types",
            )


def _as(source: Source, dtype: str | None, where: str) -> Source:
    if dtype is None or source.dtype.kind != "f":
        return source
    made: np.dtype[Any] = np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<")
    if made == source.dtype:
        return source

    def parts() -> Iterator[Array]:
        for part in source.pieces():
            flat = part.reshape(-1)
            for start in range(0, flat.size, _PIECE):
                yield _converted(flat[start : start + _PIECE], dtype, f"{where}, {source.name!r}")

    def fetch() -> Array:
        return np.concatenate([np.empty(0, made), *parts()]).reshape(source.shape)

    kind = BFLOAT if dtype == "bfloat16" else ""
    return replace(source, dtype=made, fetch=fetch, parts=parts, kind=kind)


def _converted(values: Array, dtype: str, where: str) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        floats = values.astype(np.float32) if dtype == "bfloat16" else values
        made = (
            narrow(floats) if dtype == "bfloat16" else values.astype(f"<{np.dtype(dtype).str[1:]}")
        )
    infinite = (made & 0x7FFF) == 0x7F80 if dtype == "bfloat16" else np.isinf(made)
    if infinite.any() and np.isfinite(values[infinite]).any():
        raise ArgumentError(
            where,
            expected=f"numbers in the range of {dtype}",
            received=f"{values[infinite & np.isfinite(values)][0]}",
            advice="write it as float32 or bfloat16, or check why it is so large",
        )
    return made
