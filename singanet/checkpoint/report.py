"""The report of a load, to print and to query, and the error for arrays that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from singanet.errors import StateMismatchError
from singanet.types import Shape

LONGEST = 400
"""Characters of the message of a `mismatch`, which stays below."""
_MOST_ROWS = 3


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
        """The matches by a rule."""
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


def mismatch(report: LoadReport) -> StateMismatchError:
    """The error about ``report``, which it carries: the first arrays in trouble, how many more."""
    rows = list(_rows(report))
    error = _error(report, rows, 1)
    for shown in range(2, min(_MOST_ROWS, len(rows)) + 1):
        longer = _error(report, rows, shown)
        if len(str(longer)) < LONGEST:
            error = longer
    error.report = report
    return error


def _error(report: LoadReport, rows: list[str], shown: int) -> StateMismatchError:
    more = f" and {len(rows) - shown} more" if len(rows) > shown else ""
    return StateMismatchError(
        _cut(report.where, 120),
        expected="every array of the net, of its shape and type, and no other",
        received=", ".join(rows[:shown]) + more,
        advice=_advice(report),
    )


def _rows(report: LoadReport) -> Iterator[str]:
    for found in report.mismatched:
        alike = found.shape == found.file_shape
        what = found.why if alike else f"of {_shape(found.file_shape)}"
        wanted = "" if alike else f", not {_shape(found.shape)}"
        yield f"{_cut(found.name, 60)} {what}{wanted}"
    for name, shape in report.missing.items():
        yield f"no {_cut(name, 60)} {_shape(shape)}"
    for name, shape in report.extra.items():
        yield f"{_cut(name, 60)} {_shape(shape)} as well"


def _advice(report: LoadReport) -> str:
    types = report.mismatched and all(map(_cast_is_enough, report.mismatched))
    if types and not report.missing and not report.extra:
        return "pass cast=True to convert"
    renamed = "rename={file: net} or " if report.missing and report.extra else ""
    return f"pass {renamed}strict=False to load what fits, or take the net that was saved"


def _cast_is_enough(found: Mismatch) -> bool:
    return found.shape == found.file_shape and not found.why.startswith("square")


def _shape(shape: Shape) -> str:
    return _cut(str(shape), 40)


def _cut(text: str, longest: int) -> str:
    """``text`` itself, or its two ends where it is longer."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
