"""A rehearsed step of a net, recorded as kernel calls."""

from __future__ import annotations

__all__: list[str] = []
