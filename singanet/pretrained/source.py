"""What a net is loaded from: a model's config, its arrays, and the files beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singanet.base.arguments import name_trouble
from singanet.base.files import expect_in_folder
from singanet.base.kinds import kind_of
from singanet.checkpoint import Reader, open_state
from singanet.checkpoint.folder import weights_in
from singanet.checkpoint.gguf import GgufReader
from singanet.errors import ConfigError, FileFormatError
from singanet.pretrained.config import expect_object
from singanet.pretrained.folder import CONFIG, MODULES, beside, read_settings
from singanet.pretrained.gguf import GgufModelReader
from singanet.pretrained.gguf_form import GgufForm
from singanet.pretrained.sentences import SentencePooling, pooling_of


@dataclass(frozen=True)
class ModelSource:
    """An open model: ``config`` as in config.json, ``reader`` of the arrays, ``files`` beside.

    ``sentence`` is what sentence-transformers makes of the steps, where the folder is one of its;
    ``tokenizer`` are the values of a GGUF file about its texts, ``form`` is how it goes back.
    """

    where: str
    config: dict[str, Any]
    reader: Reader
    files: Mapping[str, Path]
    sentence: SentencePooling | None
    tokenizer: Mapping[str, Any]
    form: GgufForm | None = None


@contextmanager
def open_source(path: Path) -> Iterator[ModelSource]:
    """The model in the folder ``path``, or the GGUF file, open for the length of the block."""
    weights = weights_in(path) if path.is_dir() else path
    with open_state(weights) as reader:
        if isinstance(reader, GgufReader):
            yield _of_gguf(reader)
            return
        folder = weights.parent
        if not path.is_dir() and not (folder / CONFIG).is_file():
            kind = kind_of(path)
            raise FileFormatError(
                f"file {str(path)!r}",
                expected=f"a model of transformers with its {CONFIG!r} beside it, or a GGUF file",
                received=f"{kind.name}, alone",
                advice=kind.advice or "pass the folder of the model",
            )
        where = f"config {str(folder / CONFIG)!r}"
        config = read_settings(folder, CONFIG)
        expect_object(config, where)
        yield ModelSource(where, config, reader, beside(folder), _sentence(folder), {})


def _of_gguf(reader: GgufReader) -> ModelSource:
    """The model in a GGUF file, which has its config and its tokenizer in it."""
    seen = GgufModelReader(reader)
    texts = {k: v for k, v in reader.values.items() if k.startswith("tokenizer.")}
    return ModelSource(reader.where, seen.config, seen, {}, None, texts, seen.form)


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
        expect_in_folder(path, path / folder)
        return read_settings(path, f"{folder}/{CONFIG}")

    return pooling_of(read_settings(path, MODULES), where, settings)
