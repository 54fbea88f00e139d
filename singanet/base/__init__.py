"""The ground of all rooms: described objects, counts, watched edits, files, seeds, text."""

from __future__ import annotations

__all__: list[str] = []
