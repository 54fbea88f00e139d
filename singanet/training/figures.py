"""The file that a run's figures are written to."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from singanet.errors import ArgumentError

__all__ = ["check_writable", "write_json"]


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse, before a run, a path that could not be written after it; ``option`` gave it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise _refused(path, "a folder" if path.is_dir() else str(path), option)


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` beside ``path``, then move them over it."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json.dumps(figures, indent=2) + "\n")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise _refused(path, str(error)) from error


def _refused(path: Path, received: str, option: str = "--json") -> ArgumentError:
    return ArgumentError(
        f"{option} {str(path)!r}",
        expected="a file in a folder that exists and can be written to",
        received=received,
        advice="create the folder first, or choose another place",
    )
