"""Whole models in one file: a net's description, its parameters, what it is trained with."""

from __future__ import annotations

from singanet.model_file.layout import is_model_file
from singanet.model_file.reader import load_model
from singanet.model_file.writer import save_model

__all__ = ["is_model_file", "load_model", "save_model"]
