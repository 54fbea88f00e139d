"""A family of models: how it is drawn, and what its folders may hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singanet.errors import ConfigError, one_of
from singanet.layers.symbol import Symbol
from singanet.pretrained.drawing import ModelDrawing


@dataclass(frozen=True)
class Family:
    """``architectures`` are transformers' classes that are built, the usual one first.

    ``bare`` are those of them that have no head, whose output are the last hidden states.
    ``others`` are patterns of names that arrays have had at other times, with what they are called
    here. ``idle`` are patterns of arrays that may be there and compute nothing, such as buffers.
    """

    draw: Callable[[ModelDrawing], Symbol | Sequence[Symbol]]
    architectures: tuple[str, ...]
    bare: tuple[str, ...]
    others: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    idle: tuple[str, ...] = ()

    def architecture(self, values: Mapping[str, Any], where: str) -> str:
        """The class that the config names. Errors: `ConfigError` for one that is not built."""
        named = values.get("architectures")
        if named is None or named == []:
            return self.architectures[0]
        if not isinstance(named, list) or named[0] not in self.architectures:
            raise ConfigError(
                f"{where}, architectures",
                expected=f"one of {one_of(self.architectures)}",
                received=repr(named)[:80],
                advice="save the model as one of these classes with transformers",
            )
        return str(named[0])

    def canonical(self, names: Iterable[str]) -> dict[str, str]:
        """The names in the files by those that are drawn with."""
        found = {}
        for name in names:
            known = name
            for pattern, here in self.others:
                known = re.sub(pattern, here, known)
            found[known] = name
        return found

    def is_idle(self, name: str) -> bool:
        """Whether the array may be there without a parameter."""
        return any(re.fullmatch(pattern, name) for pattern in self.idle)
