"""A model going back into a GGUF file like the one that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint import Source
from singanet.checkpoint.entry import sources_of
from singanet.checkpoint.gguf import interleaved, write_gguf
from singanet.errors import ArgumentError
from singanet.types import Array

_FILE_TYPE, _QUANTIZATION = "general.file_type", "general.quantization_version"
_FILE_TYPES = {None: 0, "float32": 0, "float16": 1, "q8_0": 7, "bfloat16": 32}
"""What llama.cpp calls a file by most of its arrays."""


@dataclass(frozen=True)
class GgufForm:
    """What a GGUF file has beside the arrays of a net, and how those lie in it.

    ``values`` are all of the file's; ``names`` are its arrays by transformers' names, in its order;
    ``factors`` are arrays that became settings of ``config``. Of ``heads`` are the rows of queries
    and keys that stand in llama.cpp's order; norms that are ``raised`` have an offset of 1 in them.
    """

    values: Mapping[str, Any]
    names: Mapping[str, str]
    factors: Mapping[str, Array]
    config: Mapping[str, Any]
    heads: Mapping[str, int]
    raised: bool

    def write(
        self, path: Path, sources: Sequence[Source], config: Mapping[str, Any], dtype: str | None
    ) -> None:
        """Write ``sources``, under transformers' names, and the values to ``path``.

        Errors: `ArgumentError` for another ``config`` than that of the file, and those of
        `write_gguf`.
        """
        if config != self.config:
            keys = {*config, *self.config}
            changed = {key for key in keys if config.get(key) != self.config.get(key)}
            raise ArgumentError(
                f"pretrained.save to {str(path)!r}",
                expected="a config as it came out of the GGUF file, whose values go back",
                received=f"other {', '.join(sorted(changed))}"[:200],
                advice="save into a folder, and convert that by llama.cpp's tools",
            )
        by_name = {source.name: source for source in sources}
        arrays = [self._theirs(by_name[name]) for name in self.names if name in by_name]
        arrays += sources_of(self.factors, str(path))
        values = {**self.values, _FILE_TYPE: np.uint32(_FILE_TYPES.get(dtype, 0))}
        if dtype == "q8_0":
            values[_QUANTIZATION] = np.uint32(2)
        write_gguf(path, arrays, dtype, values)

    def _theirs(self, source: Source) -> Source:
        """``source`` under its name and in the order of rows of the file."""
        part = source.name.split(".")[-2]

        def fetch() -> Array:
            array = source.array()
            if part in self.heads:
                return interleaved(array, self.heads[part])
            return array + 1 if self.raised and part.endswith("norm") else array

        turned = part in self.heads or (self.raised and part.endswith("norm"))
        name = self.names[source.name]
        return replace(source, name=name, fetch=fetch) if turned else replace(source, name=name)
