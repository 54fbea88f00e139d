"""What loading found: a report to print, and to ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from singanet.types import Shape


@dataclass(frozen=True, slots=True)
class Match:
    """An array found; ``rule`` says how, and is empty where names and shapes are equal."""

    name: str
    file_name: str
    shape: Shape
    file_shape: Shape
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An array found by name that does not fit, and ``why``."""

    name: str
    file_name: str
    shape: Shape
    file_shape: Shape
    why: str


@dataclass
class LoadReport:
    """Matched, renamed, missing and extra arrays; ``missing`` and ``extra`` give their shapes."""

    where: str
    matched: list[Match] = field(default_factory=list)
    mismatched: list[Mismatch] = field(default_factory=list)
    missing: dict[str, Shape] = field(default_factory=dict)
    extra: dict[str, Shape] = field(default_factory=dict)

    def add(self, found: Match | Mismatch) -> None:
        """Put ``found`` where it belongs."""
        if isinstance(found, Match):
            self.matched.append(found)
        else:
            self.mismatched.append(found)

    @property
    def renamed(self) -> list[Match]:
        """Those matched by a rule."""
        return [match for match in self.matched if match.rule]

    @property
    def complete(self) -> bool:
        """Whether file and net hold the same arrays."""
        return not (self.mismatched or self.missing or self.extra)

    def summary(self) -> str:
        """One line."""
        return (
            f"{len(self.matched)} matched ({len(self.renamed)} by a rule), "
            f"{len(self.mismatched)} that do not fit, {len(self.missing)} missing in the file, "
            f"{len(self.extra)} not in the net"
        )

    def table(self, limit: int = 200) -> str:
        """A line for each array, trouble first, cut after ``limit``."""
        rows = [
            ("net", "shape", "file", "shape", ""),
            *((m.name, m.shape, m.file_name, m.file_shape, m.why) for m in self.mismatched),
            *(
                (name, shape, "-", "", "missing in the file")
                for name, shape in self.missing.items()
            ),
            *(("-", "", name, shape, "not in the net") for name, shape in self.extra.items()),
            *((m.name, m.shape, m.file_name, m.file_shape, m.rule or "ok") for m in self.matched),
        ]
        more = len(rows) - 1 - limit
        return aligned(rows[: limit + 1]) + (f"\n... and {more} more" if more > 0 else "")

    def __str__(self) -> str:
        return f"{self.where}: {self.summary()}\n{self.table()}"


def aligned(rows: Iterable[Iterable[object]]) -> str:
    """``rows`` of cells as text in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)
