"""Folders, files and hub names of published models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from singanet.base.arguments import Budget, is_int, name_trouble, read_json
from singanet.base.files import expect_in_folder, explained, path_of
from singanet.base.kinds import kind_of
from singanet.checkpoint import Reader, open_state
from singanet.checkpoint.entry import weights_in
from singanet.checkpoint.gguf import GgufReader
from singanet.checkpoint.reader import open_file
from singanet.data import Tokenizer
from singanet.errors import ConfigError, FileAccessError, FileFormatError, brief
from singanet.pretrained.config import SentencePooling, expect_object, pooling_of
from singanet.pretrained.gguf_models import GgufForm, GgufModelReader

CONFIG, MODULES, GENERATION = "config.json", "modules.json", "generation_config.json"
IMAGES = "preprocessor_config.json"
_LONGEST = 1 << 20

BESIDE = frozenset({
    "1_Pooling/config.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "config_sentence_transformers.json", GENERATION, "merges.txt", "modules.json",
    IMAGES, "processor_config.json", "sentence_bert_config.json", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
})  # fmt: skip
"""Files that a net does not need and tokenizers or processors do; `save` copies them."""

POOLING_FILES = frozenset({
    "1_Pooling/config.json", "config_sentence_transformers.json", "modules.json",
    "sentence_bert_config.json",
})  # fmt: skip
"""Files of sentence-transformers among them."""


def read_settings(folder: Path, name: str) -> Any:
    """Return the content of a JSON file in ``folder``; a link that leads outside is refused.

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


def companions(folder: Path) -> dict[str, Path]:
    """Return the files of the folder that `save` copies, by name, without links outside."""
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
        advice="the file is damaged: download the folder again",
    )


@dataclass(frozen=True)
class ModelSource:
    """An open model: its ``config``, a ``reader`` of its arrays, and the other ``files``.

    ``sentence`` is the pooling of a sentence-transformers folder, ``pixels`` the height and width
    of images in preprocessor_config.json. ``tokenizer`` is the tokenizer metadata of a GGUF file,
    ``form`` its layout for saving.
    """

    where: str
    config: dict[str, Any]
    reader: Reader
    files: Mapping[str, Path]
    sentence: SentencePooling | None
    tokenizer: Mapping[str, Any]
    form: GgufForm | None = None
    pixels: tuple[int, int] | None = None


@contextmanager
def open_source(path: Path) -> Iterator[ModelSource]:
    """Open the model in the folder or GGUF file ``path`` for the length of the block."""
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
                expected=f"a model of transformers with {CONFIG!r} in its folder, or a GGUF file",
                received=f"{kind.name} alone",
                advice=kind.advice or "pass the folder of the model",
            )
        where = f"config {str(folder / CONFIG)!r}"
        config = read_settings(folder, CONFIG)
        expect_object(config, where)
        files, sentence = companions(folder), _sentence(folder)
        pixels = _pixels(folder) if IMAGES in files else None
        yield ModelSource(where, config, reader, files, sentence, {}, pixels=pixels)


def _of_gguf(reader: GgufReader) -> ModelSource:
    """Return the model in a GGUF file, which contains its config and tokenizer."""
    seen = GgufModelReader(reader)
    texts = {k: v for k, v in reader.values.items() if k.startswith("tokenizer.")}
    return ModelSource(reader.where, seen.config, seen, {}, None, texts, seen.form)


def _pixels(folder: Path) -> tuple[int, int] | None:
    """Return height and width of prepared images; None if they differ from image to image."""
    settings = read_settings(folder, IMAGES)
    expect_object(settings, f"file {str(folder / IMAGES)!r}")
    crops = settings.get("do_center_crop", True) and settings.get("crop_size") is not None
    size = settings.get("crop_size" if crops else "size")
    if isinstance(size, dict):
        # ConvNeXt's processor crops a square of the shortest edge.
        edge = size.get("shortest_edge") if "crop_pct" in settings else None
        high, wide = size.get("height", edge), size.get("width", edge)
    else:
        high = wide = size
    most = 1 << 16
    if not is_int(high) or not is_int(wide) or max(high, wide) >= most:
        return None
    return int(high), int(wide)


def _sentence(path: Path) -> SentencePooling | None:
    if not (path / MODULES).is_file():
        return None
    where = f"file {str(path / MODULES)!r}"

    def settings(folder: str) -> Any:
        if "/" in folder or "\\" in folder or name_trouble(folder):
            raise ConfigError(
                where,
                expected="the name of a subfolder",
                received=brief(folder)[:80],
                advice="the folder is damaged: download it again",
            )
        expect_in_folder(path, path / folder)
        return read_settings(path, f"{folder}/{CONFIG}")

    return pooling_of(read_settings(path, MODULES), where, settings)


_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
"""The files to download if a model has no safetensors."""


def folder_of(model: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return ``model`` if it is a path, and otherwise the hub model's folder in the cache.

    An existing folder takes precedence over a hub name. Missing files are downloaded: config,
    arrays and the files that `save` copies; with ``HF_HUB_OFFLINE=1`` none are. ``revision`` is a
    branch, a tag or a commit, by default "main". Errors: `FileAccessError` if neither folder nor
    name exists, if the hub does not answer or denies access, or without the package
    ``huggingface_hub`` (the extra ``hub``).
    """
    path = path_of(model, "folder")
    if not isinstance(model, str) or path.exists() or not _NAME.fullmatch(model):
        return path
    found = _cached(model, revision, _SAFE)
    if not any((found / name).exists() for name in _SAFE[:2]):
        found = _cached(model, revision, _PICKLED)
    return found


def _cached(name: str, revision: str | None, weights: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise _trouble(
            name,
            "no folder of that name, and no package huggingface_hub to download it",
            "check the path, or pip install 'singanet[hub]'",
        ) from error
    patterns = [CONFIG, *weights, *sorted(BESIDE)]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise _trouble(
            name,
            f"no such folder, and from the hub {reason[:300]}",
            "check the path or name and the network connection, log in with hf auth login if the"
            f" model requires it, or pass a folder: hf download {name} --local-dir FOLDER fills it"
            " on another machine",
        ) from error


def _trouble(name: str, received: str, advice: str) -> FileAccessError:
    return FileAccessError(
        f"model {name!r}",
        expected="a folder, or the name of a model on Hugging Face's hub",
        received=received,
        advice=advice,
    )


_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")


def tokenizer(folder: str | os.PathLike[str], *, revision: str | None = None) -> Tokenizer:
    """Return the tokenizer of a model. It needs the extra ``text``.

    Errors: `BackendError` without it; `DataError` if files are missing or damaged, or if a GGUF
    file's vocabulary is not byte-level BPE; `FileFormatError`, `FileAccessError`.

    Args:
        folder: Path of the model's folder or GGUF file, or its name on Hugging Face's hub.
        revision: Branch, tag or commit of a model on the hub.
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
    # For another file, only its folder can have a tokenizer.
    if any((path.parent / name).exists() for name in _FILES):
        return Tokenizer.of(path.parent)
    raise FileFormatError(
        f"file {str(path)!r}",
        expected=f"the folder of a published model, with {' or '.join(_FILES)}, or a GGUF file",
        received=f"{kind.name}, in a folder without them",
        advice=kind.advice or "pass the folder of the model",
    )
