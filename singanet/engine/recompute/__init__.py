"""What a step recomputes for its backward: the choice, and steps by the layers that do so."""

from __future__ import annotations

__all__: list[str] = []
