"""Formats of checkpoints by what a file is, and their writing.

Only `Writing.write` may be called on another thread than the one that trains: the other methods may
talk with other processes, which MPI lets one thread do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from singanet.base.files import expect_file, explained, path_of
from singanet.base.kinds import kind_of_stream
from singanet.checkpoint.entry import Source, State, sources_of, weights_in
from singanet.checkpoint.reader import Reader, find_pickle, find_records, open_file
from singanet.errors import ArgumentError, FileFormatError, UnknownNameError, did_you_mean, one_of

_HERE = "singanet.checkpoint"
LATEST = "latest"
"""The text file in a folder that names the checkpoint in it, where two take turns."""


@dataclass(frozen=True)
class Format:
    """A format's name, its suffixes, and where its reader and writer are found when needed.

    A format ``by_layers`` stores arrays in another library's layouts, and needs a net's layers.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    reader: str
    writer: str
    by_layers: bool = False

    def open(self, path: Path, **options: Any) -> Reader:
        """The file at ``path``, its table read."""
        reader: Callable[..., Reader] = self._member(self.reader)
        return reader(path, **options)

    def write(self, path: Path, state: State, **options: Any) -> None:
        """Write ``state`` to ``path``."""
        sources = sources_of(state, f"{self.name} file {str(path)!r}")
        self._member(self.writer)(path, sources, **options)

    def _member(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{_HERE}.{self.module}"), name)


FORMATS = {
    format.name: format
    for format in (
        Format(
            "snapshot", (".bin", ".desc", ".model"), "snapshot", "SnapshotReader", "write_snapshot"
        ),
        Format("pickle", (".pickle", ".pkl"), "pickle", "PickleReader", "write_pickle"),
        Format("hdf5", (".h5", ".hdf5"), "hdf5", "Hdf5Reader", "write_hdf5"),
        Format("npz", (".npz",), "npz", "NpzReader", "write_npz"),
        Format(
            "safetensors",
            (".safetensors",),
            "safetensors",
            "SafetensorsReader",
            "write_safetensors",
        ),
        Format(
            "sharded", (".safetensors.index.json",), "sharded", "ShardedReader", "write_sharded"
        ),
        Format("gguf", (".gguf",), "gguf", "GgufReader", "write_gguf"),
        # Written and read with the layers of a net, which they need for Keras' layouts.
        Format("keras", (".weights.h5",), "keras", "KerasReader", "write_keras", True),
        Format("keras-legacy", (), "keras", "KerasReader", "write_keras_legacy", True),
    )
}
"""The formats of checkpoints by their names, as `save`, `load` and `convert` take them."""

_OTHERS = {"torch": Format("torch", (), "torch", "TorchReader", "")}
"""Formats that are read and not written."""


def write_state(
    path: str | os.PathLike[str], state: State, format: str | None = None, **options: Any
) -> None:
    """Write ``state``, a dict from name to array, to ``path``; whole or not at all.

    ``format`` is a name of `FORMATS`; None goes by the suffix, and without one writes a
    snapshot. Arrays are written one at a time: none but the one in hand is ever copied. Errors:
    `UnknownNameError`, `FileAccessError`, and what the format cannot hold.
    """
    path = checked_path(path)
    expect_file(path, path)  # a snapshot would be written beside /dev/null, with a suffix
    found = format_named(format_for(path, format))
    if found.by_layers and "layers" not in options:
        raise ArgumentError(
            f"file {str(path)!r}",
            expected="a format of names and arrays",
            received=f"{found.name!r}, which is written with the layers of a net",
            advice="call net.save, or choose another format, such as 'npz'",
        )
    found.write(path, state, **options)


def open_state(path: str | os.PathLike[str], format: str | None = None, **options: Any) -> Reader:
    """Open the checkpoint at ``path``: its table is read and checked, its arrays are not.

    ``format`` None looks at the file's first bytes, whatever its name. For a snapshot ``path``
    may be the prefix; ``.pickle`` may be left out; of an offloaded net it is the folder, and so it
    is of a published model: its ``model.safetensors``, the index of its shards, and the like.
    With ``layers`` of the net, the Keras formats give its own names and layouts.
    Errors: `FileAccessError`, `FileFormatError`.
    """
    path = _file_of(checked_path(path))
    name = format or by_content(path)
    return (_OTHERS.get(name) or format_named(name)).open(path, **options)


def _file_of(path: Path) -> Path:
    """The checkpoint in the folder of an offloaded net or a published model, else ``path``."""
    if not path.is_dir():
        return path
    latest = path / LATEST
    if latest.is_file():
        with explained(latest, "read"):
            return path / Path(latest.read_text("utf-8", "replace").strip()).name
    beside = find_records(path).is_file() or find_pickle(path).is_file()
    return path if beside else weights_in(path)


def format_named(name: str) -> Format:
    """The format called ``name``. Errors: `UnknownNameError`."""
    if name not in FORMATS:
        raise UnknownNameError(
            "argument format",
            expected=f"one of {one_of(FORMATS)}",
            received=repr(name),
            advice=did_you_mean(name, FORMATS, "leave it out to go by the suffix"),
        )
    return FORMATS[name]


def format_for(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The name of the format to write to ``path``: ``format`` itself, or by the suffix."""
    return format_named(format or by_suffix(path)).name


def by_suffix(path: str | os.PathLike[str]) -> str:
    """The name of the format whose suffix ``path`` has; snapshot where it has none.

    Errors: `ArgumentError` for the suffix of another program's files.
    """
    path = checked_path(path)
    name = path.name.lower()
    found = {
        suffix: format.name
        for format in FORMATS.values()
        for suffix in format.suffixes
        if name.endswith(suffix)
    }
    if not found:
        known = [suffix for format in FORMATS.values() for suffix in format.suffixes]
        expect_no_other_suffix(path, known, _INSTEAD.get(path.suffix.lower(), _OR_SAY_SO))
        return "snapshot"
    return found[max(found, key=len)]


_OR_SAY_SO = "choose one of them, or none for SINGA's .bin and .desc, or name the format"
_TORCH = "write '.safetensors' with layout='torch', which safetensors.torch.load_file reads"
_INSTEAD = {
    ".keras": "weights for Keras end in '.weights.h5'",
    ".onnx": "singanet.onnx.save(net, path) writes an ONNX graph",
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".singanet": "a whole model is written by net.save_model, weights end in '.safetensors'",
}


def expect_no_other_suffix(path: Path, known: Iterable[str], advice: str) -> None:
    """Errors: `ArgumentError` where ``path`` ends in none of ``known`` but like another format.

    That is a suffix that begins with a letter: ``run-0.5`` is a name without one.
    """
    suffix = path.suffix
    if suffix[1:2].isalpha() and not path.name.lower().endswith(tuple(known)):
        raise ArgumentError(
            f"file {str(path)!r}",
            expected=f"a name that ends in {one_of(known, 16)}",
            received=f"the suffix {suffix!r}, by which others would take it for their own",
            advice=advice,
        )


def by_content(path: Path) -> str:
    """The name of the format of the file at ``path``, by its first bytes."""
    candidates = (find(path) for find in (find_records, find_pickle))
    found = next((each for each in candidates if each.is_file()), path)
    with open_file(found) as stream:
        kind = kind_of_stream(stream)
    if kind.format:
        return kind.format
    raise FileFormatError(
        f"file {str(found)!r}",
        expected=f"a checkpoint: {one_of(FORMATS)}",
        received=kind.name,
        advice=kind.advice or "pass the path of a checkpoint",
    )


def checked_path(path: Any) -> Path:
    """``path`` as a `Path`. Errors: `ArgumentError` for what names no file."""
    found = path_of(path, "f")
    if os.path.basename(os.fspath(path)) in ("", ".", ".."):
        raise ArgumentError(
            "argument f",
            expected="the path of a file, a str or Path",
            received=f"{os.fspath(path)!r}, which names no file"[:200],
            advice="pass for example 'runs/model.npz'",
        )
    return found


class Writing(Protocol):
    """The file at ``path``, being written; the one before counts until the new one is whole."""

    path: Path

    def write(self) -> None:
        """Write what this process has, and let go of it; an error waits for `finish`."""

    def ended(self, written: bool) -> bool:
        """Whether all processes have ``written``; all ask at the same point."""

    def finish(self) -> None:
        """Let the file count; all processes call it. Errors: those of `write`, of any of them."""

    def give_up(self) -> None:
        """End without asking other processes, with what that allows. Errors: as for `finish`."""


class OneFile:
    """A file that this process writes alone: it is in its place once `write` has come to its end.

    The format goes by the suffix.
    """

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self.path = path
        self._sources = sources
        self._failed: Exception | None = None

    def write(self) -> None:
        """Write all of it."""
        try:
            write_state(self.path, self._sources)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failed = error
        finally:
            self._sources = ()

    def ended(self, written: bool) -> bool:
        """``written`` itself."""
        return written

    def finish(self) -> None:
        """Raise what `write` has met."""
        if self._failed is not None:
            raise self._failed

    def give_up(self) -> None:
        """As `finish`: nobody else is asked."""
        self.finish()
