"""The tokenizer of a published model, wherever its net is loaded from."""

from __future__ import annotations

import os

from singanet.base.kinds import kind_of
from singanet.checkpoint import open_state
from singanet.checkpoint.folder import weights_in
from singanet.checkpoint.gguf import GgufReader
from singanet.data import Tokenizer
from singanet.errors import FileFormatError
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
    kind = kind_of(path)
    if kind.format == "gguf" or not path.exists():
        with open_state(path, "gguf") as reader:
            assert isinstance(reader, GgufReader)
            return Tokenizer.of_gguf(reader.values)
    # Of another file nothing is known but its folder.
    if any((path.parent / name).exists() for name in _FILES):
        return Tokenizer.of(path.parent)
    raise FileFormatError(
        f"file {str(path)!r}",
        expected=f"the folder of a published model, with {' or '.join(_FILES)}, or a GGUF file",
        received=f"{kind.name}, with none of them beside it",
        advice=kind.advice or "pass the folder of the model",
    )
