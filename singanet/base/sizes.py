"""Bytes as people write them."""

from __future__ import annotations

import re

import numpy as np

from singanet.errors import ArgumentError

UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
"""Bytes of each unit: those of the SI go by thousands, those of the IEC by 1024."""

_TEXT = re.compile(r"\s*(\d{1,15}(?:\.\d{0,15})?)\s*([A-Za-z]+)\s*", re.ASCII)


def checked_bytes(where: str, value: object) -> int:
    """``value``, a number of bytes or a text with a unit such as "600MB", in whole bytes.

    Errors: anything else, and what is less than a byte.
    """
    found = 0
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is not None and match[2] in UNITS:
            whole, _, part = match[1].partition(".")
            # In integers, so that no digit is rounded.
            scaled = int(whole + part) * UNITS[match[2]]
            found = scaled // 10 ** len(part)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        found = int(value)
    if found > 0:
        return found
    raise ArgumentError(
        where,
        expected=f"bytes as a positive int, or a text with a unit of {', '.join(UNITS)}",
        received=repr(value)[:60],
        advice="write for example '600MB'",
    )


def bytes_text(nbytes: int) -> str:
    """In the largest unit of the SI of which there is one: "1.25 GB", "600.0 MB", "12.3 kB"."""
    for unit, digits in (("GB", 2), ("MB", 1), ("kB", 1)):
        if abs(nbytes) >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:,.{digits}f} {unit}"
    return f"{nbytes} B"
