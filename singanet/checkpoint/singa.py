"""Where SINGA looks for a checkpoint, and how it spells the names in one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from singanet.base.files import path_of


def record_path(path: str | os.PathLike[str]) -> Path:
    """The ``.bin`` for a prefix, a ``.bin``, a ``.desc`` or a 1.0.0 ``.model``."""
    text = str(path_of(path))
    if text.endswith((".bin", ".model")):
        return Path(text)
    return Path(text.removesuffix(".desc") + ".bin")


def find_records(path: Path) -> Path:
    """The file of records for ``path``: itself, or the prefix with ``.bin``, then ``.model``."""
    prefix = str(path).removesuffix(".desc")
    candidates = [Path(prefix), Path(prefix + ".bin"), Path(prefix + ".model")]
    return next((each for each in candidates if each.is_file()), path)


def pickle_path(path: str | os.PathLike[str]) -> Path:
    """``path`` with the suffix SINGA gives it."""
    text = str(path_of(path))
    return Path(text if text.endswith((".pickle", ".pkl")) else text + ".pickle")


def find_pickle(path: Path) -> Path:
    """``path``, or with ``.pickle`` added or taken away, whichever is there."""
    name = str(path)
    for candidate in (name, f"{name}.pickle", name.removesuffix(".pickle")):
        if Path(candidate).is_file():
            return Path(candidate)
    return path


def record_keys(names: Sequence[str]) -> dict[str, str]:
    """The key of each name: its last slash as ``_``, unless that would name two arrays alike."""
    keys = {name: "_".join(name.rsplit("/", 1)) for name in names}
    uses: dict[str, int] = {}
    for key in [*keys.values(), *names]:
        uses[key] = uses.get(key, 0) + 1
    return {
        name: name if uses[key] > (2 if key == name else 1) else key for name, key in keys.items()
    }
