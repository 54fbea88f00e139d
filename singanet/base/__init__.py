"""The ground of all rooms: described objects, counts, watched edits, files, seeds, text, charts."""

from __future__ import annotations

__all__: list[str] = []
