"""Derivatives of recorded calls: tangents carried along with the arrays they belong to."""

from __future__ import annotations

__all__: list[str] = []
