"""Recordings bound to memory and replayed, and their validity."""

from __future__ import annotations

__all__: list[str] = []
