"""The index of a state dict in several files: JSON with a map from array to file.

An array of which several processes had rows is in several files, listed in the order of the rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from singanet.base.budget import Budget, read_json
from singanet.checkpoint.names import check_name, check_unique
from singanet.errors import FileFormatError, UnsafeFileError

WEIGHT_MAP = "weight_map"
METADATA = "metadata"
SUFFIX = ".safetensors.index.json"
LONGEST = 32 << 20
"""Room for the names of 100,000 arrays, and for those of their files."""
MOST_SHARDS = 512
"""Each is an open file; those of the largest published models are 191."""


def parse(text: bytes, where: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The metadata of an index, as texts, and of each array the names of its files.

    Errors: `FileFormatError` for another text, names twice or too many; `UnsafeFileError` for what
    is not the plain name of a file beside the index.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        check_unique((name for name, _ in pairs), where)
        return dict(pairs)

    budget = Budget(len(text), partial(broken, where))
    found = read_json(text, budget, "an index", unique)
    arrays = found.get(WEIGHT_MAP) if isinstance(found, dict) else None
    metadata = found.get(METADATA, {}) if isinstance(found, dict) else None
    if not isinstance(arrays, dict) or not isinstance(metadata, dict):
        raise broken(where, f"an object with a {WEIGHT_MAP!r}", repr(text[:40]))
    shards: set[str] = set()
    files = {}
    for name, told_of in arrays.items():
        check_name(name, where)
        files[name] = told_of if isinstance(told_of, list) and told_of else [told_of]
        for shard in files[name]:
            if shard not in shards if isinstance(shard, str) else True:
                shards.add(_checked_shard(shard, where))
        check_unique(files[name], where)
    if len(shards) > MOST_SHARDS:
        raise broken(where, f"at most {MOST_SHARDS} files", str(len(shards)))
    told = {key: str(value)[:1000] for key, value in metadata.items()}
    return told, files


def _checked_shard(name: Any, where: str) -> str:
    """``name`` itself, if it is that of a file beside the index on every system."""
    plain = (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name.isprintable()
        and not any(sign in name for sign in '/\\:*?"<>|')
        and not name.startswith(".")
        and PurePosixPath(name).name == name
    )
    if not plain:
        raise UnsafeFileError(
            where,
            expected="names of files beside the index, such as model-00001-of-00002.safetensors",
            received=repr(name)[:80],
            advice="get the model from a source you trust",
        )
    return str(name)


def stem(path: Path) -> str:
    """The prefix of the names of the files whose index is at ``path``."""
    return path.name[: -len(SUFFIX)] if path.name.lower().endswith(SUFFIX) else path.name


def broken(where: str, expected: str, received: str) -> FileFormatError:
    """The error for an index that is not as it should be, or does not fit its files."""
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the files are damaged or of different models: get all of them again",
    )
