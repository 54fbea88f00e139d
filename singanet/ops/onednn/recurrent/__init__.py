"""Recurrent layers by oneDNN, a whole direction a kernel."""

from __future__ import annotations

__all__: list[str] = []
