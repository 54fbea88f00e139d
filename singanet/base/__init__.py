"""The lowest room: described objects, checks of arguments, files, seeds, memory, text, charts."""

from __future__ import annotations

__all__: list[str] = []
