"""What a program consists of, as tables, pictures and traces."""

from __future__ import annotations

__all__: list[str] = []
