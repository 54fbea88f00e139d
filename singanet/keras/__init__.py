"""Whole models of Keras: nets built from ``.keras`` archives, and their weights put back."""

from __future__ import annotations

from singanet.keras.archive import load_model, save_model

__all__ = ["load_model", "save_model"]
