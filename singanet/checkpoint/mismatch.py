"""The error for a file whose arrays are not those of the net, short enough to be read."""

from __future__ import annotations

from collections.abc import Iterator

from singanet.checkpoint.report import LoadReport, Mismatch
from singanet.errors import StateMismatchError
from singanet.types import Shape

LONGEST = 400
"""Characters of the whole message, which stays below."""
_MOST_ROWS = 3


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
        what = found.why if _cast_is_enough(found) else f"of {_shape(found.file_shape)}"
        wanted = "" if _cast_is_enough(found) else f", not {_shape(found.shape)}"
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
    return found.shape == found.file_shape


def _shape(shape: Shape) -> str:
    return _cut(str(shape), 40)


def _cut(text: str, longest: int) -> str:
    """``text`` itself, or its two ends where it is longer."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
