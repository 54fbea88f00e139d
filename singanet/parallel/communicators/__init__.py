"""How the ranks of a job talk to each other, and what they tell about themselves."""

from __future__ import annotations

__all__: list[str] = []
