"""Recordings bound to memory and run again, and how long they hold."""

from __future__ import annotations

__all__: list[str] = []
