"""Which names arrays may carry in a file."""

from __future__ import annotations

from collections.abc import Iterable

from singanet.base.arguments import NAMES, name_trouble
from singanet.errors import FileFormatError

MAX_ARRAYS = 100_000
"""More arrays than any net has; the bound keeps a hostile file from filling the memory."""


def check_name(name: str, where: str) -> str:
    """``name`` itself, when every format can hold it and no folder could be escaped with it.

    Errors: `FileFormatError` for an empty, overlong or unprintable name, and for a part between
    slashes that is empty, ``.`` or ``..``.
    """
    trouble = name_trouble(name)
    if trouble:
        raise FileFormatError(
            where,
            expected=NAMES,
            received=trouble,
            advice="rename the parameter, or get the file from a source you trust",
        )
    return name


def check_unique(names: Iterable[str], where: str) -> None:
    """Errors: `FileFormatError` for a name used twice or for more than `MAX_ARRAYS` names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise duplicate(name, where)
        seen.add(name)
        if len(seen) > MAX_ARRAYS:
            raise too_many(where)


def duplicate(name: str, where: str) -> FileFormatError:
    """The error for an array name that a file holds twice."""
    return FileFormatError(
        where,
        expected="each name once",
        received=f"{name!r} twice",
        advice="give every parameter a name of its own, or write the file again",
    )


def too_many(where: str) -> FileFormatError:
    """The error for a file with more arrays than we are ready to list."""
    return FileFormatError(
        where,
        expected=f"at most {MAX_ARRAYS} arrays",
        received="more",
        advice="split the state into several files",
    )
