"""Line charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 30, 34
COLOURS = ("#1f6fb2", "#d1495b", "#2e8b57", "#8a5fbf")

Lines = Mapping[str, Sequence[float]]


def line_charts(x: Sequence[int], charts: Mapping[str, Lines]) -> str:
    """One chart beside the other: title → line name → values at ``x``.

    What is not finite is left out of its line.
    """
    parts = [
        f'<g transform="translate({k * WIDTH},0)">{_chart(title, x, lines)}</g>'
        for k, (title, lines) in enumerate(charts.items())
    ]
    width = max(len(charts), 1) * WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


@dataclass(frozen=True)
class _Scale:
    """Where a value stands in the picture."""

    first: float
    last: float
    low: float
    high: float

    def place(self, at: float, value: float) -> tuple[float, float]:
        span = self.last - self.first
        across = (at - self.first) / span if span else 0.5
        up = (value - self.low) / (self.high - self.low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )


def _chart(title: str, x: Sequence[int], lines: Lines) -> str:
    finite = [v for values in lines.values() for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    scale = _Scale(min(x, default=0), max(x, default=0), low, high)
    drawn = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>', *_axes(scale)]
    for k, (name, values) in enumerate(lines.items()):
        drawn += _line(scale, name, zip(x, values, strict=True), COLOURS[k % len(COLOURS)], k)
    return "".join(drawn)


def _axes(scale: _Scale) -> list[str]:
    drawn = []
    for k in range(5):
        value = scale.low + (scale.high - scale.low) * k / 4
        y = scale.place(scale.first, value)[1]
        drawn.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    for at in sorted({scale.first, (scale.first + scale.last) // 2, scale.last}):
        x = scale.place(at, scale.low)[0]
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{at:g}</text>')
    return drawn


def _line(
    scale: _Scale, name: str, pairs: Iterable[tuple[int, float]], colour: str, row: int
) -> list[str]:
    points = [scale.place(at, value) for at, value in pairs if math.isfinite(value)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in points),
        f'<text x="{WIDTH - RIGHT}" y="{16 + 13 * row}" text-anchor="end" '
        f'fill="{colour}">{escape(name)}</text>',
    ]
