"""A checkpoint in another format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Source
from singanet.checkpoint.formats import FORMATS, format_for, open_state, write_state
from singanet.checkpoint.gguf import GgufReader
from singanet.checkpoint.halves import BFLOAT
from singanet.checkpoint.reader import Reader
from singanet.errors import ArgumentError, one_of

_TYPED = ("safetensors", "sharded", "gguf")
"""Formats that have floats of a type that is asked for."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    net: Any = None,
    format: str | None = None,
    dtype: str | None = None,
) -> str:
    """Write the arrays of ``source`` to ``target``, one at a time, and say what was done.

    ``net``, anything with `load` and `save`, gives names and layouts: with it older names become
    today's, and Keras' files can be read and written. ``format`` None goes by the suffix of
    ``target``. safetensors, shards and GGUF may have their floats as ``dtype``, a name that the
    format's writer takes; by default bfloat16 stays so. Errors: `ArgumentError` for a Keras file
    without a net, and those of reading and writing.
    """
    name = format_for(target, format)
    if dtype is not None and (net is not None or name not in _TYPED):
        raise ArgumentError(
            f"convert to {str(target)!r}, argument dtype",
            expected=f"a file of {one_of(_TYPED)}, of arrays as they are",
            received=f"{name!r}" + (" of a net" if net is not None else ""),
            advice="leave dtype out, or convert the file that you get once more",
        )
    if net is not None:
        report = net.load(source)
        net.save(target, format=name)
        return f"{target}: {name}; {report.summary()}"
    with open_state(source) as reader:
        _expect_plain(reader, name)
        sources = [_source(reader, entry.name) for entry in reader.entries.values()]
        write_state(target, sources, name, **_options(reader, name, dtype))
    return f"{target}: {name}; {len(sources)} arrays from {reader.format}"


def _source(reader: Reader, name: str) -> Source:
    entry = reader.entries[name]
    return Source(name, entry.shape, np.dtype(entry.dtype), lambda: reader.read(name))


def _options(reader: Reader, target: str, dtype: str | None) -> dict[str, Any]:
    """How ``target`` is written: types, and the values of one GGUF file in another."""
    if target not in _TYPED:
        return {}
    entries = reader.entries.values()
    kept = {entry.name: "bfloat16" for entry in entries if entry.kind == BFLOAT}
    options: dict[str, Any] = {"dtype": dtype or kept or None}
    if target == "gguf" and isinstance(reader, GgufReader):
        options["values"] = reader.values
    return options


def _expect_plain(reader: Reader, target: str) -> None:
    if reader.foreign_layout or target.startswith("keras"):
        plain = [name for name in FORMATS if not name.startswith("keras")]
        raise ArgumentError(
            f"convert of {str(Path(reader.path))!r}",
            expected=f"a net for Keras' layouts, or {one_of(plain)} on both sides",
            received="none",
            advice="name the model (--model), or pass net=",
        )
