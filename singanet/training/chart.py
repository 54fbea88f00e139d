"""Line charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 12, 30, 34
_COLOURS = ("#1f6fb2", "#d1495b", "#2e8b57", "#8a5fbf")


def line_charts(x: Sequence[int], charts: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One chart beside the other: title → line name → values at ``x``.

    What is not finite is left out of its line.
    """
    parts = [
        f'<g transform="translate({k * _WIDTH},0)">{_chart(title, x, lines)}</g>'
        for k, (title, lines) in enumerate(charts.items())
    ]
    width = max(len(charts), 1) * _WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'width="{width}" height="{_HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _chart(title: str, x: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    finite = [v for values in lines.values() for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    first, last = (min(x), max(x)) if x else (0, 0)

    def place(at: float, value: float) -> tuple[float, float]:
        across = (at - first) / (last - first) if last > first else 0.5
        up = (value - low) / (high - low)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    drawn = [f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(title)}</text>']
    for k in range(5):
        value = low + (high - low) * k / 4
        y = place(first, value)[1]
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#ddd"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" '
            f'text-anchor="end">{value:.4g}</text>'
        )
    for at in sorted({first, (first + last) // 2, last}):
        drawn.append(
            f'<text x="{place(at, low)[0]:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{at}</text>'
        )
    for k, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        pairs = zip(x, values, strict=True)
        points = [place(at, value) for at, value in pairs if math.isfinite(value)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in points]
        drawn.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{16 + 13 * k}" text-anchor="end" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "".join(drawn)
