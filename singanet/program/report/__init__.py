"""Reports of programs, as tables, pictures and traces."""

from __future__ import annotations

__all__: list[str] = []
