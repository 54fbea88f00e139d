"""Ready nets, built by name for any input shape and number of classes."""

from __future__ import annotations

from singanet.models.rbm import RBM
from singanet.models.registry import ModelEntry, Recipe, build, entries, find

__all__ = ["RBM", "ModelEntry", "Recipe", "build", "entries", "find"]
