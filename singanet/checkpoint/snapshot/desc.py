"""The ``.desc`` file beside a snapshot: a text for people, and for readers of old snapshots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from singanet.checkpoint.entry import Source
from singanet.checkpoint.snapshot.types import DATA_TYPES
from singanet.checkpoint.version import FORMAT_VERSION

SINGA_VERSION = 1101
"""The SINGA release whose record layout we write."""
_LONGEST = 1 << 24


def desc_text(sources: Sequence[Source], keys: Mapping[str, str], plain: bool) -> str:
    """The lines SINGA writes, each array under its key; our format version unless ``plain``."""
    first = f"{SINGA_VERSION}" if plain else f"{SINGA_VERSION}\tsinganet format: {FORMAT_VERSION}"
    lines = [first]
    for source in sources:
        shape = " ".join(str(axis) for axis in source.shape)
        lines.append(
            f"parameter name: {keys[source.name]}\tdata type: {DATA_TYPES[source.dtype]}\t"
            f"dim: {len(source.shape)}\tshape: {shape}"
        )
    return "\n".join(lines) + "\n"


def read_desc(path: Path) -> tuple[str, set[str]]:
    """The SINGA version, or "", and the parameter names of the file at ``path``.

    Whatever is not understood is passed over: no reader of SINGA's uses this file.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return "", set()
    version = re.match(r"(?:SINGA VERSION: )?(\d{1,9})\s", text)
    names = re.findall(r"^parameter name: ([^\t\n]+)\t", text, re.MULTILINE)
    return version[1] if version else "", set(names)
