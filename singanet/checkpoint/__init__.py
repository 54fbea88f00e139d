"""Checkpoints: state dicts written to and read from files, in all supported formats.

`formats` detects formats. `reader`, `entry` and `matching` are common to all formats, `halves`
handles 16-bit floats and `sharded` states of several files. Each format has a module: `npz`,
`pickle`, `safetensors`, `torch` (names: `torch_naming`), `hdf5` (`hdf5_guard`), `keras`, `gguf`
(`gguf_blocks`), and SINGA's `snapshot` (`snapshot_records`, `core.proto`). `tools` converts,
compares and inspects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.checkpoint.entry import Entry, Source
    from singanet.checkpoint.formats import FORMATS, format_for, open_state, write_state
    from singanet.checkpoint.layer_arrays import LayerDescription
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

if not TYPE_CHECKING:  # otherwise type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
