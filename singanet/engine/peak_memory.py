"""The most memory that something takes, by what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from singanet.base.sizes import bytes_text


@dataclass(frozen=True)
class PeakMemory:
    """Bytes by what they are for: "arena", "parameters", "optimizer state", ..."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def after(self, filling: int) -> PeakMemory:
        """The same of a net whose parameters are filled first, which takes so many bytes."""
        return PeakMemory({**self.parts, "filling": max(0, filling - self.total)})

    def __str__(self) -> str:
        shown = [f"{bytes_text(size)} {name}" for name, size in self.parts.items() if size]
        return f"{bytes_text(self.total)} = {' + '.join(shown) or 'nothing'}"
