"""A rehearsed step of a net, written down as kernel calls."""

from __future__ import annotations

__all__: list[str] = []
