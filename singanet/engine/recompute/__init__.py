"""Recomputation for backward: its choice, and steps by the layers that recompute."""

from __future__ import annotations

__all__: list[str] = []
