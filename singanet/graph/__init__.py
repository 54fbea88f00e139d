"""The graph of layers: nodes and their order, nets in nets, and how both are built."""

from __future__ import annotations

__all__: list[str] = []
