"""Whole models in one file: a net's description, its parameters, what it is trained with."""

from __future__ import annotations

from singanet.net import load_model
from singanet.saving.model_layout import is_model_file
from singanet.saving.model_writer import save_model

__all__ = ["is_model_file", "load_model", "save_model"]
