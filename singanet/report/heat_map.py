"""Values in a table of cells, as SVG whose colours are those of the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_LONGEST = 44


def heat_map(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Cells by row name and column, stronger for larger values, on a logarithmic scale.

    What is not finite is crossed out; zero is empty.
    """
    logs = [math.log10(v) for line in rows.values() for v in line if v > 0 and math.isfinite(v)]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    left = 12 + 6.6 * max((len(_short(name)) for name in rows), default=0)
    size = max(4.0, min(26.0, 640 / max(len(columns), 1)))
    width, height = left + size * len(columns) + 12, 16 * len(rows) + 24
    parts = [
        f'<svg class="singanet-chart" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">'
    ]
    for k, (name, line) in enumerate(rows.items()):
        y = 16 * k
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + 12}" text-anchor="end">{escape(_short(name))}</text>'
        )
        for column, (label, value) in enumerate(zip(columns, line, strict=True)):
            x = left + size * column
            tip = f"<title>{escape(name)}, {escape(label)}: {value:.4g}</title>"
            box = f'x="{x:.1f}" y="{y + 1}" width="{size - 1:.1f}" height="14"'
            if not math.isfinite(value):
                parts.append(
                    f'<g>{tip}<rect class="bad" {box}/>'
                    f'<path class="cross" d="M{x:.1f},{y + 1}l{size - 1:.1f},14"/></g>'
                )
            elif value > 0:
                share = (math.log10(value) - low) / (high - low) if high > low else 1.0
                fill = f'fill-opacity="{0.08 + 0.92 * share:.3f}"'
                parts.append(f'<rect class="heat" {box} {fill}>{tip}</rect>')
    for column in {0, len(columns) - 1} if columns else ():
        x = left + size * (column + (column > 0))
        end = "end" if column else "start"
        if column or size * len(columns) > 130 or len(columns) == 1:
            label = f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{end}">'
            parts.append(f"{label}{escape(columns[column])}</text>")
    return "".join([*parts, "</svg>"])


def _short(name: str) -> str:
    """The end of a long ``name``, which says more: the cells say it whole when pointed at."""
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :]
