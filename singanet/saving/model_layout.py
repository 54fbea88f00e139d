"""Where things stand in a model file.

It is a safetensors file. Its array ``model`` is a text in JSON, as bytes: the net's description
and settings. ``net/<parameter>`` are the parameters, ``optimizer/<key>`` and ``precision/<key>``
what the training has gathered, ``fit/<number>/<key>`` what the clipping and accumulation have that
`fit` put around the optimizer. So each has a checksum, and any reader of safetensors can take
the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.formats import FORMATS, by_content, by_suffix, open_state
from singanet.checkpoint.reader import Reader
from singanet.errors import ArgumentError, ConfigError, FileFormatError, VersionError
from singanet.types import Array

FORMAT = "singanet model"
VERSION = 1
"""Raised by one whenever a file written today could not be read by yesterday's library."""

CONTAINER = "safetensors"
TEXT, NET, OPTIMIZER, PRECISION, FIT = "model", "net/", "optimizer/", "precision/", "fit/"
LONGEST = 4 << 20
"""Bytes of the text; that of ResNet-152 has 110,000. Parsed it takes some twenty times more."""


def check_path(path: Path) -> None:
    """Errors: a name by which other programs would take the file for one of their own."""
    suffix = "".join(path.suffixes[-1:]).lower()
    others = {".keras", ".onnx"} | {s for each in FORMATS.values() for s in each.suffixes}
    if suffix in others - {".safetensors"} or by_suffix(path) not in ("snapshot", CONTAINER):
        raise ArgumentError(
            f"file {str(path)!r}",
            expected="a name of its own for a model file",
            received=f"the suffix {suffix!r} of another format",
            advice="call it 'name.singanet'; net.save writes weights alone in other formats",
        )


def encoded(about: Mapping[str, Any]) -> Array:
    """``about`` as the array ``model``. Errors: `ConfigError` for one that is too long."""
    text = json.dumps(about, default=lambda array: np.asarray(array).tolist()).encode()
    if len(text) > LONGEST:
        raise ConfigError(
            "a net's configuration",
            expected=f"at most {LONGEST} bytes of JSON",
            received=f"{len(text)}",
            advice="keep large tables out of the arguments of layers; save the weights alone",
        )
    return np.frombuffer(text, np.uint8)


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Whether a model file, whole or damaged behind its table, stands at ``path``."""
    path = Path(path)
    try:
        if not path.is_file() or by_content(path) != CONTAINER:
            return False
        with open_state(path, CONTAINER) as reader:
            return _has_text(reader)
    except FileFormatError:
        return False


def read_about(reader: Reader) -> dict[str, Any]:
    """The parsed text of an open model file.

    Errors: `FileFormatError` for one without it or with another text, `VersionError` for a newer
    one, and those of `Reader.read`.
    """
    if not _has_text(reader):
        raise _no_model(reader.where, f"arrays alone, {len(reader.entries)} of them")
    if reader.entries[TEXT].nbytes > LONGEST:
        raise _no_model(reader.where, f"a description of {reader.entries[TEXT].nbytes} bytes")
    text = bytes(reader.read(TEXT))
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_model(reader.where, f"a description that is no JSON: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _no_model(reader.where, "a description of something else")
    version = about.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise VersionError(
            reader.where,
            expected=f"model version 1 to {VERSION}, which this singanet knows",
            received=f"model version {str(version)[:40]}",
            advice="update singanet, or save the model with an older one",
        )
    return about


def below(reader: Reader, prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with ``prefix``, which is taken off."""
    names = [name for name in reader.entries if name.startswith(prefix)]
    return {name.removeprefix(prefix): reader.read(name) for name in names}


def _has_text(reader: Reader) -> bool:
    entry = reader.entries.get(TEXT)
    return entry is not None and entry.dtype == np.uint8 and len(entry.shape) == 1


def _no_model(where: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected="a whole model, as net.save_model writes it",
        received=received[:200],
        advice="build the net and load weights with net.load",
    )
