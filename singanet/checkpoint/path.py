"""What may be the path of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from singanet.errors import ArgumentError


def checked_path(path: Any) -> Path:
    """``path`` as a `Path`. Errors: `ArgumentError` for what names no file."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise _refused(f"{path!r}, a {type(path).__name__}") from None
    if not isinstance(text, str) or "\0" in text:
        raise _refused(repr(text))
    if os.path.basename(text) in ("", ".", ".."):
        raise _refused(f"{text!r}, which names no file")
    return Path(text)


def _refused(received: str) -> ArgumentError:
    return ArgumentError(
        "argument f",
        expected="the path of a file, a str or Path",
        received=received[:200],
        advice="pass for example 'runs/model.npz'",
    )
