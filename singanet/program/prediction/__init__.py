"""Predictions: a net's layers with constants instead of parameters, recorded and replayed."""

from __future__ import annotations

__all__: list[str] = []
