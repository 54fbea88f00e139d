"""Whose code a class is."""

from __future__ import annotations


def is_library(kind: type) -> bool:
    """Whether the class is one of singanet's."""
    return kind.__module__.partition(".")[0] == "singanet"
