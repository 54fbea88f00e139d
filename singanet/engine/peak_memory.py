"""The most memory that something takes, by what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from singanet.base.kinds import bytes_text
from singanet.base.notebooks import html_table, short_note


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return short_note(f"PeakMemory: {bytes_text(self.total)}")

    def _repr_html_(self) -> str:
        """Return the parts as a table, for notebooks."""
        sizes = {name: size for name, size in self.parts.items() if size}
        rows = [
            (name, bytes_text(size), f"{size / max(self.total, 1):.0%}")
            for name, size in sorted(sizes.items(), key=lambda part: -part[1])
        ]
        rows.append(("in all", bytes_text(self.total), ""))
        rows += [(f"outside: {n}'s file", bytes_text(s), "") for n, s in self.outside.items()]
        return html_table(("memory", "bytes", "share"), rows)

    def __str__(self) -> str:
        shown = [f"{bytes_text(size)} {name}" for name, size in self.parts.items() if size]
        told = f"{bytes_text(self.total)} = {' + '.join(shown) or 'nothing'}"
        if self.outside:
            files = [f"{bytes_text(size)} of {name}'s file" for name, size in self.outside.items()]
            told += f"\noutside of it {', '.join(files)}, in pages that the system shares and drops"
        return told
