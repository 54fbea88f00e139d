"""Whole models in one file: a net's description, its parameters, what it is trained with."""

from __future__ import annotations

from singanet.net import load_model
from singanet.saving.whole_model import is_model_file, save_model

__all__ = ["is_model_file", "load_model", "save_model"]
