"""Where things stand in a file of a whole model, and in one of a predictor.

It is a safetensors file. One array is a text in JSON, as bytes: the net's description and
settings; it is called ``model`` or ``predictor``. Of a model ``net/<parameter>`` are the
parameters, ``optimizer/<key>`` and ``precision/<key>`` what the training has gathered,
``fit/<number>/<key>`` what the clipping and accumulation have that `fit` put around the optimizer;
of a predictor ``constant/<name>`` are the constants. So each has a checksum, and any reader of
safetensors can take the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base import kinds
from singanet.base.budget import Budget, read_json
from singanet.base.files import path_of
from singanet.base.kinds import Kind, kind_of
from singanet.checkpoint.formats import by_content, expect_no_other_suffix, open_state
from singanet.checkpoint.reader import Reader
from singanet.errors import (
    CheckpointError,
    ConfigError,
    FileAccessError,
    FileFormatError,
    SingaNetError,
    VersionError,
)
from singanet.types import Array

CONTAINER = "safetensors"
NET, OPTIMIZER, PRECISION, FIT = "net/", "optimizer/", "precision/", "fit/"
LONGEST = 4 << 20
"""Bytes of the text; that of ResNet-152 has 110,000. Parsed it takes some twenty times more."""


@dataclass(frozen=True)
class FileKind:
    """A kind of file: the name of its text, what it is called, and how to read it.

    ``version`` is raised by one whenever a file written today could not be read by yesterday's
    library. ``otherwise`` is advice for a file of arrays alone.
    """

    text: str
    version: int
    kind: Kind
    otherwise: str

    @property
    def what(self) -> str:
        """What it is called."""
        return self.kind.name

    @property
    def advice(self) -> str:
        """How to read it."""
        return self.kind.advice

    @property
    def format(self) -> str:
        """What the text says that it is."""
        return f"singanet {self.text}"


MODEL = FileKind("model", 1, kinds.MODEL, "build the net and load weights with net.load")
PREDICTOR = FileKind(
    "predictor",
    1,
    kinds.PREDICTOR,
    "build the net, load weights with net.load and call net.predictor()",
)
_KINDS = (MODEL, PREDICTOR)


def check_path(path: Path) -> None:
    """Errors: a name by which other programs would take the file for one of their own."""
    expect_no_other_suffix(
        path,
        (".singanet", ".safetensors"),
        "call it 'name.singanet'; net.save writes weights alone in other formats",
    )


def encoded(kind: FileKind, about: Mapping[str, Any]) -> Array:
    """``about`` as the text of a file. Errors: `ConfigError` for one that could not be read."""
    whole = {"format": kind.format, "version": kind.version, **about}
    text = json.dumps(whole, default=lambda array: np.asarray(array).tolist()).encode()
    if len(text) > LONGEST:
        raise ConfigError(
            "a net's configuration",
            expected=f"at most {LONGEST} bytes of JSON",
            received=f"{len(text)}",
            advice="keep large tables out of the arguments of layers, rare values out of a Table by"
            " min_count; or save the weights alone",
        )
    try:
        decoded(kind, text, "a net's configuration")
    except FileFormatError as error:
        raise ConfigError(
            error.where,
            expected=f"{kind.what}, that can be read",
            received=error.received,
            advice="put fewer objects inside each other, or save the weights alone with net.save",
        ) from None
    return np.frombuffer(text, np.uint8)


def is_model_file(path: str | os.PathLike[str], kind: FileKind = MODEL) -> bool:
    """Whether a file of the kind, whole or damaged behind its table, stands at ``path``."""
    path = path_of(path)
    try:
        if not path.is_file() or by_content(path) != CONTAINER:
            return False
        with open_state(path, CONTAINER) as reader:
            return _has_text(reader, kind)
    except FileFormatError:
        return False


@contextmanager
def opened(path: str | os.PathLike[str], kind: FileKind) -> Iterator[tuple[Reader, dict[str, Any]]]:
    """The arrays and the parsed text of a file of ``kind``; errors inside name the file.

    Errors: `FileFormatError` for a file of another kind, `VersionError` for a newer one, and
    those of `Reader`.
    """
    path = path_of(path)
    where = f"{kind.text} file {str(path)!r}"
    if path.exists():
        found = kind_of(path)
        if found.format != CONTAINER:
            advice = found.advice or kind.otherwise
            if found.format and kind is PREDICTOR and "net.load" in advice:
                advice += "; net.predictor() makes one of it"
            refusal = FileAccessError if path.is_dir() else FileFormatError
            raise refusal(where, expected=kind.what, received=found.name, advice=advice)
    with open_state(path, CONTAINER) as reader:
        about = _about(reader, kind)
        with naming(where):
            yield reader, about


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Let errors of what a description asks for name the file that it came from."""
    try:
        yield
    except CheckpointError:
        raise
    except SingaNetError as error:
        raise error.within(where) from error


def _about(reader: Reader, kind: FileKind) -> dict[str, Any]:
    if not _has_text(reader, kind):
        others = [other for other in _KINDS if _has_text(reader, other)]
        if others:
            raise _other(reader.where, kind, others[0].what, others[0].advice)
        raise _other(reader.where, kind, f"arrays alone, {len(reader.entries)} of them")
    _expect_short(reader.entries[kind.text].nbytes, kind, reader.where)
    return decoded(kind, bytes(reader.read(kind.text)), reader.where)


def decoded(kind: FileKind, text: bytes, where: str) -> dict[str, Any]:
    """What `encoded` made ``text`` of. Errors: those of `opened`, of the file ``where``."""
    _expect_short(len(text), kind, where)

    def refuse(expected: str, received: str) -> FileFormatError:
        return _other(where, kind, f"a description that is not {expected}: {received}")

    about = read_json(text, Budget(len(text), refuse))
    if not isinstance(about, dict) or about.get("format") != kind.format:
        raise _other(where, kind, "a description of something else")
    version = about.get("version")
    if type(version) is not int or not 1 <= version <= kind.version:
        raise VersionError(
            where,
            expected=f"{kind.text} version 1 to {kind.version}, which this singanet knows",
            received=f"{kind.text} version {str(version)[:40]}",
            advice=f"update singanet, or save the {kind.text} with an older one",
        )
    return about


def _expect_short(size: int, kind: FileKind, where: str) -> None:
    if size > LONGEST:
        raise _other(where, kind, f"a description of {size} bytes")


def below(reader: Reader, prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with ``prefix``, which is taken off."""
    names = [name for name in reader.entries if name.startswith(prefix)]
    return {name.removeprefix(prefix): reader.read(name) for name in names}


def _has_text(reader: Reader, kind: FileKind) -> bool:
    entry = reader.entries.get(kind.text)
    return entry is not None and entry.dtype == np.uint8 and len(entry.shape) == 1


def _other(where: str, kind: FileKind, received: str, advice: str = "") -> FileFormatError:
    return FileFormatError(
        where, expected=kind.what, received=received[:200], advice=advice or kind.otherwise
    )
