"""Parameters, their names in nested nets, and their gradients."""

from __future__ import annotations

__all__: list[str] = []
