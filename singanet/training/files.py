"""Training states in files and folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from singanet.checkpoint import FORMATS, open_state, write_state
from singanet.errors import CheckpointError, FileAccessError
from singanet.types import Array


def write_training(path: Path, state: Mapping[str, Array]) -> None:
    """Write the state of a training in the format of the suffix. Errors: `FileAccessError`."""
    write_state(path, state)


def read_training(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The state in a file, or of a folder the one that got furthest.

    Errors: `FileAccessError` where there is none, and what the format refuses.
    """
    path = Path(path)
    with open_state(furthest(path) if path.is_dir() else path) as reader:
        return dict(reader)


def furthest(folder: Path) -> Path:
    """The training checkpoint in ``folder`` with the most steps; other files are passed over.

    Errors: `FileAccessError` where there is none.
    """
    suffixes = {suffix for format in FORMATS.values() for suffix in format.suffixes}
    found: dict[Path, int] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in suffixes and not path.name.startswith("."):
            step = _steps(path)
            if step is not None:
                found[path] = step
    if not found:
        raise FileAccessError(
            f"folder {str(folder)!r}",
            expected="a training checkpoint",
            received="none",
            advice="train with callbacks=[ModelCheckpoint(folder)] first",
        )
    return max(found, key=lambda path: found[path])


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


def _steps(path: Path) -> int | None:
    try:
        with open_state(path) as reader:
            return int(json.loads(bytes(reader.read("session")))["step"])
    except (CheckpointError, LookupError, TypeError, ValueError):
        return None
