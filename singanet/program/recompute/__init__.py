"""Recomputation: parts of a forward pass are dropped and made again for the backward pass."""

from __future__ import annotations

__all__: list[str] = []
