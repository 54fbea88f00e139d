"""Whose code a class is, and the classes that a room has for all."""

from __future__ import annotations

from typing import Any


def is_library(kind: type) -> bool:
    """Whether the class is one of singanet's."""
    return kind.__module__.partition(".")[0] == "singanet"


def public_classes(room: Any, base: type) -> dict[str, type]:
    """The public names of the package ``room`` that are subclasses of ``base``."""
    found = {name: getattr(room, name) for name in room.__all__}
    # Python 3.10 takes list[int] for an instance of type.
    classes = {name: v for name, v in found.items() if issubclass(type(v), type)}
    return {name: kind for name, kind in classes.items() if issubclass(kind, base)}
