"""Which names layers, nets and arrays may carry: those that every file can hold."""

from __future__ import annotations

MAX_NAME_BYTES = 4096


def name_trouble(name: str) -> str:
    """What is wrong with ``name``, "" where nothing is.

    Refused: an empty, overlong or unprintable name, and a part between slashes that is empty, ``.``
    or ``..``, by which a folder could be escaped.
    """
    if len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"{len(name)} characters"
    if not name:
        return "an empty name"
    if any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in name):
        return f"control characters in {name[:60]!r}"
    if any(0xD800 <= ord(sign) < 0xE000 for sign in name):
        return f"no Unicode text in {name[:60]!r}"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return f"{name[:60]!r}"
    return ""


NAMES = (
    f"names of 1 to {MAX_NAME_BYTES} bytes of printable characters without empty, '.' or '..' parts"
)
"""What was expected, in errors."""
