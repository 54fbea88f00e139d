"""Reductions between backward and the rule: sums, a few elements, means."""

from __future__ import annotations

__all__: list[str] = []
