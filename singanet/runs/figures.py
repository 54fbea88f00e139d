"""The file that a run's figures are written to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from singanet.base.files import replacing
from singanet.errors import ArgumentError

__all__ = ["check_writable", "write_json"]


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse, before a run, a path that could not be written after it; ``option`` gave it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(
            f"{option} {str(path)!r}",
            expected="a file in a folder that exists and can be written to",
            received="a folder" if path.is_dir() else str(path),
            advice="create the folder first, or choose another place",
        )


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` to ``path``, whole or not at all. Errors: `FileAccessError`."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(figures, indent=2) + "\n")
