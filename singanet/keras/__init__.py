"""Whole models of Keras: nets built from ``.keras`` archives."""

from __future__ import annotations

from singanet.keras.archive import load_model

__all__ = ["load_model"]
