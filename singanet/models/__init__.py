"""Ready nets, built by name for any input shape and number of classes."""

from __future__ import annotations

from singanet.models.registry import ModelEntry, Recipe, build, entries, find

__all__ = ["ModelEntry", "Recipe", "build", "entries", "find"]
