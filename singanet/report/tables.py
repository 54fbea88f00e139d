"""Tables of a report."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from singanet.training.about import flat

_MOST_CLASSES = 32
_SHOWN_PAIRS = 25
LONGEST = 300
"""Characters of a name, which in objects within objects would grow from level to level."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in a frame that scrolls; every cell is escaped, the first of a row its name."""
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    shown = f"<thead><tr>{titles}</tr></thead>" if head else ""
    kind = "" if head else ' class="facts"'
    return f'<div class="scroll"><table{kind}>{shown}<tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, Any]) -> str:
    """Names and values; objects in objects get names with dots."""
    return table((), [(name, text(value)) for name, value in flat(values, LONGEST)])


def text(value: Any) -> str:
    """``value`` for reading: floats to six digits, large integers with commas."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value))
    return "–" if value is None else str(value)


def confusion_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The whole matrix, or of many classes the pairs most often confused."""
    if len(labels) > _MOST_CLASSES:
        return _pairs(labels, counts)
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    body = ""
    for k, (label, row) in enumerate(zip(labels, counts, strict=True)):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td{" class=hit" if j == k else ""} style="--p:{count / total:.3f}">{count:,}</td>'
            for j, count in enumerate(row)
        )
        right = f"{100 * row[k] / total:.1f} %"
        body += f'<tr><th scope="row">{escape(label)}</th>{cells}<th>{right}</th></tr>'
    return (
        '<div class="scroll"><table class="matrix"><caption>rows: true classes; columns: classes '
        "taken; last: share taken rightly</caption>"
        f"<thead><tr><td></td>{head}<td></td></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _pairs(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    found = heapq.nlargest(
        _SHOWN_PAIRS,
        (
            (count, labels[i], labels[j])
            for i, row in enumerate(counts)
            for j, count in enumerate(row)
            if i != j and count
        ),
    )
    rows = [(true, taken, f"{count:,}") for count, true, taken in found]
    return table(("true class", "taken for", "times"), rows)
