"""What a net is loaded from: a model's config, its arrays, and the files beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singanet.base.arguments import name_trouble
from singanet.base.files import expect_inside
from singanet.checkpoint import Reader, open_state
from singanet.checkpoint.folder import weights_in
from singanet.errors import ConfigError
from singanet.pretrained.config import expect_object
from singanet.pretrained.folder import CONFIG, MODULES, beside, read_settings
from singanet.pretrained.sentences import SentencePooling, pooling_of


@dataclass(frozen=True)
class ModelSource:
    """An open model: ``config`` as in config.json, ``reader`` of the arrays, ``files`` beside.

    ``sentence`` is what sentence-transformers makes of the steps, where the folder is one of its.
    """

    where: str
    config: dict[str, Any]
    reader: Reader
    files: Mapping[str, Path]
    sentence: SentencePooling | None


@contextmanager
def open_source(path: Path) -> Iterator[ModelSource]:
    """The model in the folder ``path``, open for the length of the block."""
    where = f"config {str(path / CONFIG)!r}"
    config = read_settings(path, CONFIG)
    expect_object(config, where)
    with open_state(weights_in(path)) as reader:
        yield ModelSource(where, config, reader, beside(path), _sentence(path))


def _sentence(path: Path) -> SentencePooling | None:
    if not (path / MODULES).is_file():
        return None
    where = f"file {str(path / MODULES)!r}"

    def settings(folder: str) -> Any:
        if "/" in folder or "\\" in folder or name_trouble(folder):
            raise ConfigError(
                where,
                expected="the name of a folder within",
                received=repr(folder)[:80],
                advice="the folder is damaged: get it again",
            )
        expect_inside(path, path / folder)
        return read_settings(path / folder, CONFIG)

    return pooling_of(read_settings(path, MODULES), where, settings)
