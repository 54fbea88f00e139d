"""The most memory that something takes, by what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from singanet.base.kinds import bytes_text


@dataclass(frozen=True)
class PeakMemory:
    """Bytes by what they are for: "arena", "parameters", "optimizer state", ...

    ``outside`` of the count are pages of libraries' files, by the library: the system has each
    once for all processes, and drops it where memory is short.
    """

    parts: Mapping[str, int]
    outside: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def after(self, filling: int) -> PeakMemory:
        """The same of a net whose parameters are filled first, which takes so many bytes."""
        parts = {**self.parts, "filling": max(0, filling - self.total)}
        return replace(self, parts=parts)

    def __str__(self) -> str:
        shown = [f"{bytes_text(size)} {name}" for name, size in self.parts.items() if size]
        told = f"{bytes_text(self.total)} = {' + '.join(shown) or 'nothing'}"
        if self.outside:
            files = [f"{bytes_text(size)} of {name}'s file" for name, size in self.outside.items()]
            told += f"\noutside of it {', '.join(files)}, in pages that the system shares and drops"
        return told
