"""Build the graph of layers: nodes, their order, and nested nets."""

from __future__ import annotations

__all__: list[str] = []
