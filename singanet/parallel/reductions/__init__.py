"""Reductions of gradients or values over ranks, between backward and the optimizer's rule."""

from __future__ import annotations

__all__: list[str] = []
