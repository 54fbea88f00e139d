"""Checks of users' arguments: whole numbers, reals, and names that every file can hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from numbers import Integral, Real
from operator import index
from typing import Any, SupportsIndex, TypeGuard

from singanet.errors import ArgumentError

MAX_NAME_BYTES = 4096
NAMES = (
    f"names of 1 to {MAX_NAME_BYTES} bytes of printable characters without empty, '.' or '..' parts"
)
"""The expectation in errors."""
_NO_PARTS = frozenset(("", ".", ".."))


def is_flag(value: Any) -> TypeGuard[bool]:
    """Whether ``value`` is True or False, of Python or NumPy."""
    if isinstance(value, bool):
        return True
    # The launcher checks arguments without NumPy. A NumPy flag exists only once NumPy is imported.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_)


def is_int(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether ``value`` is an int, or a NumPy one, of at least ``least``; a bool is not."""
    if type(value) is int:
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """Whether ``value`` is one finite real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_count(
    where: str,
    name: str,
    value: SupportsIndex,
    least: int,
    most: int | None = None,
    advice: str = "",
) -> int:
    """``value`` as an int from ``least`` to ``most``. Errors: `ArgumentError` naming the argument.

    Where so many things are made at once, ``most`` keeps a number from a file from filling the
    memory.
    """
    try:
        whole = None if isinstance(value, bool) else index(value)
    except TypeError:
        whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(
            f"{where}, {name}",
            expected=f"an int {bounds}",
            received=f"{value!r}",
            advice=advice or f"give a plain int {bounds}",
        )
    return whole


MESSAGES = (
    "make ids of messages by tokenizer.prompt(messages), to have them answered, or by "
    "tokenizer.chat(messages); singanet.data.Chat reads many to learn from, in .jsonl files"
)
"""The advice to rows of a chat in the place of numbers."""


def are_messages(value: Any) -> bool:
    """Whether ``value`` is a message with its role, or a row or lists of them."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, Mapping) and ("role" in value or "messages" in value)


def are_texts(value: Any) -> bool:
    """Whether ``value`` is a text, or a list of them."""
    return isinstance(value[0] if isinstance(value, (list, tuple)) and value else value, str)


def name_trouble(name: str) -> str:
    """The fault of ``name`` in words, "" if there is none.

    Refused: an empty, overlong or unprintable name, and a part between slashes that is empty, ``.``
    or ``..``, by which a folder could be escaped.
    """
    plain = name.isascii()
    size = len(name) if plain else len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        return f"{len(name)} characters"
    if not name:
        return "an empty name"
    # Most names by far are plain: a look at each sign takes longer than reading a small array.
    if not (plain and name.isprintable()):
        if any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in name):
            return f"control characters in {name[:60]!r}"
        if any(0xD800 <= ord(sign) < 0xE000 for sign in name):
            return f"no Unicode text in {name[:60]!r}"
    if not _NO_PARTS.isdisjoint(name.split("/")):
        return f"{name[:60]!r}"
    return ""
