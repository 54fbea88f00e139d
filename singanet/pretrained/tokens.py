"""The tokenizer of a published model, wherever its net is loaded from."""

from __future__ import annotations

import os

from singanet.checkpoint import open_state
from singanet.checkpoint.folder import weights_in
from singanet.checkpoint.gguf import GgufReader
from singanet.data import Tokenizer
from singanet.pretrained.hub import folder_of

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")


def tokenizer(folder: str | os.PathLike[str], *, revision: str | None = None) -> Tokenizer:
    """The tokenizer of the model that `load` takes from there: a folder, a GGUF file, a hub's name.

    Needs the extra ``text``. Errors: `BackendError` without it; `DataError` for files that are
    missing or damaged, and for vocabularies in GGUF files that are not byte-level pairs;
    `FileFormatError`, `FileAccessError`.
    """
    path = folder_of(folder, revision)
    if path.is_dir() and not any((path / name).exists() for name in _FILES):
        weights = weights_in(path)
        path = weights if weights.suffix == ".gguf" else path
    if path.is_dir():
        return Tokenizer.of(path)
    with open_state(path) as reader:
        # Of another file of arrays nothing is known but its folder.
        if isinstance(reader, GgufReader):
            return Tokenizer.of_gguf(reader.values)
    return Tokenizer.of(path.parent)
