"""Checkpoints: state dicts to files and back, in every format their users meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.checkpoint.convert import convert
from singanet.checkpoint.diff import diff
from singanet.checkpoint.entry import Entry, Source
from singanet.checkpoint.formats import FORMATS, format_for, open_state, write_state
from singanet.checkpoint.inspect import inspect
from singanet.checkpoint.keras.layer import LayerDescription
from singanet.checkpoint.load import load_into
from singanet.checkpoint.matching import Target, match
from singanet.checkpoint.packed import Packed, pack
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.report import LoadReport
from singanet.checkpoint.sharded.writer import write_folder

__all__ = [
    "FORMATS",
    "Entry",
    "LayerDescription",
    "LoadReport",
    "Packed",
    "Reader",
    "Source",
    "Target",
    "convert",
    "diff",
    "format_for",
    "inspect",
    "load_into",
    "match",
    "open_state",
    "pack",
    "write_folder",
    "write_state",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
