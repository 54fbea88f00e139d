"""Charts as SVG whose colours are those of the page they stand in, light or dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 40
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_MOST_POINTS = 24
"""Above it the points of a line are not marked one by one."""

Points = Sequence[tuple[float, float]]


def line_chart(title: str, across: str, lines: Mapping[str, Points]) -> str:
    """A chart of ``lines``, each with its own colour and dashes; ``across`` names the x axis.

    Points that are not finite are left out.
    """
    finite = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in lines.items()
    }
    every = [point for points in finite.values() for point in points]
    x_ticks = ticks(min((x for x, _ in every), default=0), max((x for x, _ in every), default=1))
    y_ticks = ticks(min((y for _, y in every), default=0), max((y for _, y in every), default=1))

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = x_ticks[-1] - x_ticks[0], y_ticks[-1] - y_ticks[0]
        return (
            _LEFT + (x - x_ticks[0]) / wide * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - y_ticks[0]) / high * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg class="chart" role="img" aria-label="{escape(title)} by {escape(across)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>'
    ]
    for tick in y_ticks:
        _, y = place(x_ticks[0], tick)
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in x_ticks:
        x, _ = place(tick, y_ticks[0])
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(across)}</text>'
    )
    for k, (name, points) in enumerate(finite.items()):
        parts.append(_line(k, name, [place(x, y) for x, y in points], points))
    parts.append(_legend(list(finite)))
    return "".join([*parts, "</svg>"])


def _line(k: int, name: str, placed: Points, points: Points) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    drawn = f'<polyline class="line s{k % 4}" stroke-dasharray="{_DASHES[k % 4]}" points="{path}"/>'
    if len(points) <= _MOST_POINTS:
        drawn += "".join(
            f'<circle class="dot s{k % 4}" cx="{a:.1f}" cy="{b:.1f}" r="2.6">'
            f"<title>{escape(name)}: {y:.6g} at {x:g}</title></circle>"
            for (a, b), (x, y) in zip(placed, points, strict=True)
        )
    return drawn


def _legend(names: list[str]) -> str:
    """The names from the right end of the title's line, each behind a piece of its line."""
    drawn, right = "", float(_WIDTH - _RIGHT)
    for k in reversed(range(len(names))):
        left = right - 6.4 * len(names[k])
        drawn += (
            f'<line class="line s{k % 4}" stroke-dasharray="{_DASHES[k % 4]}" '
            f'x1="{left - 26:.1f}" x2="{left - 5:.1f}" y1="12" y2="12"/>'
            f'<text x="{left:.1f}" y="16">{escape(names[k])}</text>'
        )
        right = left - 40
    return drawn


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers from at most ``low`` to at least ``high``."""
    if not low < high or high - low < 1e-9 * max(abs(low), abs(high)):
        spread = abs(high) / 2 or 0.5
        low, high = low - spread, high + spread
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]


def heat_map(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Cells by row name and column, stronger for larger values, on a logarithmic scale.

    What is not finite is crossed out; zero is empty.
    """
    logs = [math.log10(v) for line in rows.values() for v in line if v > 0 and math.isfinite(v)]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    left = 12 + 6.6 * max((len(name) for name in rows), default=0)
    size = max(4.0, min(26.0, 640 / max(len(columns), 1)))
    width, height = left + size * len(columns) + 12, 16 * len(rows) + 24
    parts = [
        f'<svg class="chart" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">'
    ]
    for k, (name, line) in enumerate(rows.items()):
        y = 16 * k
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
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
