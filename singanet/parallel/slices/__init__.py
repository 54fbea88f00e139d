"""Parameters of which each rank has a slice, gathered layer by layer."""

from __future__ import annotations

__all__: list[str] = []
