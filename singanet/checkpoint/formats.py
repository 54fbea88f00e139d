"""Formats of checkpoints: detection, opening and writing.

Only `Writing.write` may run in another thread than the training: the other methods may communicate
with other processes, which MPI allows in one thread only.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from singanet.base.files import expect_file, explained, path_of
from singanet.base.kinds import kind_of_start
from singanet.checkpoint.entry import Source, State, counted, sources_of, weights_in
from singanet.checkpoint.reader import Reader, find_pickle, find_records, open_file
from singanet.errors import (
    ArgumentError,
    FileFormatError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)

_HERE = "singanet.checkpoint"
LATEST = "latest"
"""The text file that names the current one of a folder's two alternating checkpoints."""


@dataclass(frozen=True)
class Format:
    """A format: its name, its suffixes, and its lazily imported reader and writer.

    A format ``by_layers`` stores arrays in another library's layouts and needs a net's layers.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    reader: str
    writer: str
    by_layers: bool = False

    def open(self, path: Path, **options: Any) -> Reader:
        """Open the file at ``path`` and read its table."""
        reader: Callable[..., Reader] = self._member(self.reader)
        return reader(path, **options)

    def write(self, path: Path, state: State, **options: Any) -> None:
        """Write ``state`` to ``path``."""
        sources = sources_of(state, f"{self.name} file {str(path)!r}")
        with counted(sources, path) as shown:
            self._member(self.writer)(path, shown, **options)

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
        # Keras' layouts need the layers of a net.
        Format("keras", (".weights.h5",), "keras", "KerasReader", "write_keras", True),
        Format("keras-legacy", (), "keras", "KerasReader", "write_keras_legacy", True),
    )
}
"""The formats of checkpoints by the names that `save`, `load` and `convert` take."""

_OTHERS = {"torch": Format("torch", (), "torch", "TorchReader", "")}
"""Read-only formats."""


def write_state(
    path: str | os.PathLike[str], state: State, format: str | None = None, **options: Any
) -> None:
    """Write arrays to ``path`` atomically.

    Large arrays are written one at a time, so at most one is copied. Errors: `UnknownNameError`,
    `FileAccessError`, and the errors of the format.

    Args:
        path: Path of the file.
        state: Dict from name to array.
        format: Name in `FORMATS`. None follows the suffix; without a suffix a snapshot is
            written.
        **options: Keyword arguments of the format's writer.
    """
    path = checked_path(path)
    expect_file(path, path)  # otherwise a snapshot would be written to /dev/null.bin
    found = format_named(format_for(path, format))
    if found.by_layers and "layers" not in options:
        raise ArgumentError(
            f"file {str(path)!r}",
            expected="a format of names and arrays",
            received=f"{found.name!r}, which needs the layers of a net",
            advice="call net.save, or choose another format, such as 'npz'",
        )
    found.write(path, state, **options)


def open_state(path: str | os.PathLike[str], format: str | None = None, **options: Any) -> Reader:
    """Open the checkpoint at ``path``: its table is read and checked, its arrays are not.

    Errors: `FileAccessError`, `FileFormatError`.

    Args:
        path: Path of a file, the prefix of a snapshot, a name without ``.pickle``, or the folder of
            an offloaded net or a published model (``model.safetensors``, an index of shards, and so
            on).
        format: Name of the format. None detects it from the first bytes, not from the name.
        **options: Keyword arguments of the format's reader, such as the ``layers`` of the net: with
            them the Keras formats use the net's names and layouts.
    """
    path = _file_of(checked_path(path))
    name = format or by_content(path)
    return (_OTHERS.get(name) or format_named(name)).open(path, **options)


def _file_of(path: Path) -> Path:
    """Return the checkpoint in the folder of an offloaded net or published model, or ``path``."""
    if not path.is_dir():
        return path
    latest = path / LATEST
    if latest.is_file():
        with explained(latest, "read"):
            return path / Path(latest.read_text("utf-8", "replace").strip()).name
    beside = find_records(path).is_file() or find_pickle(path).is_file()
    return path if beside else weights_in(path)


def format_named(name: str) -> Format:
    """Return the format called ``name``. Errors: `UnknownNameError`."""
    if name not in FORMATS:
        raise UnknownNameError(
            "argument format",
            expected=one_of(FORMATS),
            received=brief(name),
            advice=did_you_mean(name, FORMATS, "omit it to use the suffix"),
        )
    return FORMATS[name]


def format_for(path: str | os.PathLike[str], format: str | None = None) -> str:
    """Return the name of the format to write to a file. Errors: `UnknownNameError`.

    Args:
        path: Path of the file, whose suffix decides if there is no ``format``.
        format: Name in `FORMATS`, or None.
    """
    return format_named(format or by_suffix(path)).name


def by_suffix(path: str | os.PathLike[str]) -> str:
    """Return the name of the format with the suffix of ``path``; snapshot without a suffix.

    Errors: `ArgumentError` for the suffix of another program's format.
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


_OR_SAY_SO = "choose a listed suffix, or none for SINGA's .bin and .desc, or pass format="
_TORCH = "write '.safetensors' with layout='torch', which safetensors.torch.load_file reads"
_INSTEAD = {
    ".keras": "weights for Keras end in '.weights.h5'",
    ".onnx": "singanet.onnx.save(net, path) writes an ONNX graph",
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".singanet": "a whole model is written by net.save_model, weights end in '.safetensors'",
}


def expect_no_other_suffix(path: Path, known: Iterable[str], advice: str) -> None:
    """Errors: `ArgumentError` if ``path`` has the suffix of another format than ``known``.

    A suffix starts with a letter: ``run-0.5`` has none.
    """
    suffix = path.suffix
    if suffix[1:2].isalpha() and not path.name.lower().endswith(tuple(known)):
        raise ArgumentError(
            f"file {str(path)!r}",
            expected=f"a name that ends in {one_of(known, 16)}",
            received=f"the suffix {suffix!r} of another format",
            advice=advice,
        )


_START = 1 << 9
"""Bytes of a file that tell its format."""


def by_content(path: Path) -> str:
    """Return the name of the format of the file at ``path``, from its first bytes."""
    found = path
    if path.suffix == ".desc" or not path.is_file():
        candidates = (find(path) for find in (find_records, find_pickle))
        found = next((each for each in candidates if each.is_file()), path)
    with open_file(found, 0) as stream:
        kind = kind_of_start(stream.read(_START))
    if kind.format:
        return kind.format
    raise FileFormatError(
        f"file {str(found)!r}",
        expected=f"a checkpoint: {one_of(FORMATS)}",
        received=kind.name,
        advice=kind.advice or "pass the path of a checkpoint",
    )


def checked_path(path: Any) -> Path:
    """Return ``path`` as a `Path`. Errors: `ArgumentError` if it names no file."""
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
    """A file at ``path`` being written; the previous one stays valid until it is complete."""

    path: Path

    def write(self) -> None:
        """Write this process's part and release it; `finish` raises its errors."""

    def ended(self, written: bool) -> bool:
        """Return whether all processes have ``written``; all call it at the same point."""

    def finish(self) -> None:
        """Make the file valid; all processes call it. Errors: as for `write` of any process."""

    def give_up(self) -> None:
        """End without communication, as far as possible. Errors: as for `finish`."""


class OneFile:
    """A file written by one process; it is in place when `write` returns.

    The format follows the suffix.
    """

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self.path = path
        self._sources = sources
        self._failed: Exception | None = None

    def write(self) -> None:
        """Write the file."""
        try:
            write_state(self.path, self._sources)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failed = error
        finally:
            self._sources = ()

    def ended(self, written: bool) -> bool:
        """Return ``written``."""
        return written

    def finish(self) -> None:
        """Raise the error of `write`, if any."""
        if self._failed is not None:
            raise self._failed

    def give_up(self) -> None:
        """Raise the error of `write`, if any."""
        self.finish()
