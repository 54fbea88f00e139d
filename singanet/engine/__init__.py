"""Passes and steps of a net: the plan, forward, backward, and what carries them out."""

from __future__ import annotations

__all__: list[str] = []
