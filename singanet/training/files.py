"""Training states in files and folders."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.base.budget import Budget, read_json
from singanet.base.files import expect_inside, path_of
from singanet.checkpoint import FORMATS, open_state
from singanet.checkpoint.sharded.writer import is_shard
from singanet.errors import CheckpointError, FileAccessError, FileFormatError, VersionError
from singanet.types import Array

VERSION = 1
"""Of what a state says in its entry ``session``."""


def session_entry(about: dict[str, Any]) -> Array:
    """What a state says besides arrays, as its entry ``session``."""
    text = json.dumps({"version": VERSION} | about, default=lambda x: np.asarray(x).tolist())
    return np.frombuffer(text.encode(), np.uint8).copy()


def read_session(
    state: Mapping[str, Array],
    kind: str,
    where: str,
    refused: Callable[[str, str], FileFormatError],
) -> dict[str, Any]:
    """The contents of the entry ``session`` of ``state``, whose "format" is ``kind``.

    Errors: what ``refused`` makes of an expected and a received text; `VersionError`.
    """
    if "session" not in state:
        raise refused("its entry 'session'", "none")
    entry = np.asarray(state["session"])
    if entry.dtype != np.uint8:
        raise refused("an entry 'session' of text", f"one of type {entry.dtype}")
    about = read_json(entry.tobytes(), Budget(entry.size, refused))
    if not isinstance(about, dict) or about.get("format") != kind:
        found = about.get("format") if isinstance(about, dict) else about
        raise refused(f"the format {kind!r}", repr(found))
    version = about.get("version")
    if not is_int(version, 1) or version > VERSION:
        raise VersionError(
            where,
            expected=f"version 1 to {VERSION}",
            received=f"version {version!r}"[:60],
            advice="upgrade singanet to go on from it",
        )
    return about


def read_training(path: str | os.PathLike[str]) -> dict[str, Array] | None:
    """The state in a file, or of a folder the one that got furthest; None where it has none yet.

    Damaged states are passed over, with a warning. Errors: `FileAccessError` if all are damaged,
    and the errors of the format.
    """
    path = path_of(path)
    if not path.is_dir():
        with open_state(path) as reader:
            return dict(reader)
    candidates = _by_steps(path)
    for candidate in candidates:
        try:
            with open_state(candidate) as reader:
                return dict(reader)
        except FileFormatError as error:
            _tell(error)
    if candidates:
        raise _none(path)
    return None


def furthest(folder: Path) -> Path:
    """The training checkpoint in ``folder`` with the most steps; other files are passed over.

    Errors: `FileAccessError` where there is none.
    """
    found = _by_steps(folder)
    if not found:
        raise _none(folder)
    return found[0]


def _by_steps(folder: Path) -> list[Path]:
    """The training checkpoints in ``folder``, the one with the most steps first."""
    suffixes = {suffix for format in FORMATS.values() for suffix in format.suffixes}
    found: dict[Path, int] = {}
    for path in sorted(folder.iterdir(), reverse=True):
        known = any(path.name.endswith(suffix) for suffix in suffixes)
        if known and not path.name.startswith(".") and not is_shard(path):
            expect_inside(folder, path)
            step = _steps(path)
            if step is not None:
                found[path] = step
    return sorted(found, key=lambda path: found[path], reverse=True)


def _steps(path: Path) -> int | None:
    """How many steps the training in a file had taken; None, with a warning, if it is damaged."""
    try:
        with open_state(path) as reader:
            if "session" in reader.entries:
                return int(json.loads(bytes(reader.read("session")))["step"])
    except FileFormatError as error:
        _tell(error)
    except (CheckpointError, LookupError, TypeError, ValueError, RecursionError):
        pass
    return None


def _tell(error: FileFormatError) -> None:
    warnings.warn(f"passed over: {str(error).splitlines()[0]}"[:400], RuntimeWarning, stacklevel=4)


def _none(folder: Path) -> FileAccessError:
    return FileAccessError(
        f"folder {str(folder)!r}",
        expected="a training checkpoint",
        received="none",
        advice="train with callbacks=[ModelCheckpoint(folder)] first",
    )


def check_folder(folder: Path) -> None:
    """Make ``folder`` and try to write in it, so that a run does not fail after its last step.

    Errors: `FileAccessError`.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise FileAccessError(
            f"folder {str(folder)!r}",
            expected="a folder that can be made and written to",
            received=error.strerror or str(error),
            advice="choose another place; no step was taken",
        ) from error
