"""Checkpoints: state dicts to files and back, in every format their users meet.

`formats` says what a file is; `reader`, `entry` and `matching` are what all kinds share, `halves`
and `sharded` numbers and files of several. Each kind has a file of its name: `npz`, `pickle`,
`safetensors`, `torch` (names: `torch_naming`), `hdf5` (`hdf5_guard`), `keras`, `gguf`
(`gguf_blocks`), and SINGA's `snapshot` (`snapshot_records`, `core.proto`). `tools` converts, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.checkpoint.entry import Entry, Source
from singanet.checkpoint.formats import FORMATS, format_for, open_state, write_state
from singanet.checkpoint.keras import LayerDescription
from singanet.checkpoint.matching import LoadReport, Packed, Target, load_into, match, pack
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.sharded import write_folder
from singanet.checkpoint.tools import convert, diff, inspect

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
