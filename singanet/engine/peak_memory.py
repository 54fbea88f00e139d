"""The most memory that something takes, by what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from singanet.base.kinds import bytes_text


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of memory: ``parts`` maps "arena", "parameters", "optimizer state", ... to bytes.

    ``outside`` has the pages of libraries' files, which are not counted, by library: the system has
    each once for all processes, and drops it if memory is short.
    """

    parts: Mapping[str, int]
    outside: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def after(self, filling: int) -> PeakMemory:
        """Return the peak including ``filling`` bytes, the peak while the parameters are filled."""
        parts = {**self.parts, "filling": max(0, filling - self.total)}
        return replace(self, parts=parts)

    def __str__(self) -> str:
        shown = [f"{bytes_text(size)} {name}" for name, size in self.parts.items() if size]
        told = f"{bytes_text(self.total)} = {' + '.join(shown) or 'nothing'}"
        if self.outside:
            files = [f"{bytes_text(size)} of {name}'s file" for name, size in self.outside.items()]
            told += f"\noutside of it {', '.join(files)}, in pages that the system shares and drops"
        return told
