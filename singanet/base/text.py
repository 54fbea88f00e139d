"""Tables and quantities as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def snake_case(name: str) -> str:
    """A class's name as that of what it makes: ``MeanAbsoluteError`` with _ between words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> list[str]:
    """Lines with ``head`` and a rule on top; the first ``names`` columns begin at the left."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    shown = [
        "  ".join(
            cell.ljust(width) if k < names else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return [shown[0], "-" * max(map(len, shown)), *shown[1:]]


def megabytes(nbytes: int) -> str:
    """Two digits behind the point, for columns that say MB: millions, as `bytes_text` has them."""
    return f"{nbytes / 10**6:,.2f}"


def milliseconds(seconds: float | None) -> str:
    """Three digits behind the point; a question mark for what was not measured."""
    return "?" if seconds is None else f"{1e3 * seconds:,.3f}"


def reshaping(array: str, sample_shape: Sequence[int]) -> str:
    """The code that gives the samples of ``array`` another shape."""
    return f"{array}.reshape({', '.join(map(str, (-1, *sample_shape)))})"
