"""A model's folder as transformers lays it out: config.json, arrays, and what stands beside."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from singanet.base.budget import Budget, read_json
from singanet.base.files import expect_in_folder, explained
from singanet.checkpoint.reader import open_file
from singanet.errors import FileAccessError, FileFormatError

CONFIG, MODULES = "config.json", "modules.json"
_LONGEST = 1 << 20

BESIDE = frozenset({
    "1_Pooling/config.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "config_sentence_transformers.json", "generation_config.json", "merges.txt", "modules.json",
    "preprocessor_config.json", "sentence_bert_config.json", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
})  # fmt: skip
"""Files that nothing here needs, and whoever reads the texts does: they are copied along."""


def read_settings(folder: Path, name: str) -> Any:
    """What a JSON file of settings in ``folder`` says; a link that leads out of it is refused.

    Errors: `FileFormatError`, `FileAccessError`.
    """
    path = folder / name
    where = f"file {str(path)!r}"
    refuse = partial(_broken, where)
    expect_in_folder(folder, path)
    with open_file(path) as stream, explained(path, "read"):
        text = stream.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise refuse(f"at most {_LONGEST} bytes of settings", "more")
    return read_json(text, Budget(len(text), refuse), "settings")


def beside(folder: Path) -> dict[str, Path]:
    """The files of the folder that are copied along, by their names in it.

    A link that leads out of it is not among them.
    """
    found = {}
    for name in sorted(BESIDE):
        path = folder / name
        if path.is_file():
            with suppress(FileAccessError):
                expect_in_folder(folder, path)
                expect_in_folder(folder, path.parent)
                found[name] = path
    return found


def _broken(where: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the file is damaged: get the folder again",
    )
