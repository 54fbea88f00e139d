"""Predictions: a net's layers with constants in the place of parameters, recorded and replayed."""

from __future__ import annotations

__all__: list[str] = []
