"""Ready nets, built by name for any input shape and number of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.models.registry import ModelEntry, Recipe, build, entries, find

__all__ = ["ModelEntry", "Recipe", "build", "entries", "find"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
