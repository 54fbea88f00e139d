"""Line charts as SVG, and their style within a page or standing alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from os import PathLike

from singanet.base.files import expect_suffix, path_of, replacing
from singanet.picture.net_picture import LIGHT, coloured

WIDTH, HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 40
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
MOST_LINES = 4 * len(_DASHES)
"""Of four colours and four dashes."""
_LARGEST, _LEAST = 1e300, 1e-300
_MOST_POINTS = 24
"""Above it the points of a line are not marked one by one."""

Points = Sequence[tuple[float, float]]


# Every rule is bound to the charts: in a notebook it must not reach what stands around them.
RULES = """
.singanet-chart{font:11px system-ui,sans-serif}
.singanet-chart text{fill:var(--faint)}
.singanet-chart .title{fill:var(--ink);font-weight:600;font-size:13px}
.singanet-chart .rule{stroke:var(--rule)}.singanet-chart .line{fill:none;stroke-width:2}
.singanet-chart .s0{stroke:var(--s0)}.singanet-chart .s1{stroke:var(--s1)}
.singanet-chart .s2{stroke:var(--s2)}.singanet-chart .s3{stroke:var(--s3)}
.singanet-chart .dot{fill:var(--card);stroke-width:1.6}.singanet-chart .heat{fill:var(--s0)}
.singanet-chart .bad{fill:none;stroke:var(--bad)}.singanet-chart .cross{stroke:var(--bad)}
"""


def line_chart(
    title: str,
    across: str,
    lines: Mapping[str, Points],
    with_legend: bool = True,
    by_powers: bool = False,
) -> str:
    """A chart of ``lines``, each with its own colour and dashes; ``across`` names the x axis.

    Up to `MOST_LINES` no two look the same. Without a legend the page has one of `line_mark`.
    Points that are not finite are left out, and those above 1e300, whose distances may not be.
    Where every x is whole, so is every tick below. ``by_powers`` places each x, all above 0, by
    its logarithm.
    """
    if by_powers:
        lines = {name: [(math.log10(x), y) for x, y in each] for name, each in lines.items()}
    finite = {
        name: [(x, y) for x, y in points if abs(x) < _LARGEST and abs(y) < _LARGEST]
        for name, points in lines.items()
    }
    every = [point for points in finite.values() for point in points]
    whole = by_powers or all(float(x).is_integer() for x, _ in every)
    x_ticks = ticks(
        min((x for x, _ in every), default=0), max((x for x, _ in every), default=1), whole
    )
    y_ticks = ticks(min((y for _, y in every), default=0), max((y for _, y in every), default=1))

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = x_ticks[-1] - x_ticks[0], y_ticks[-1] - y_ticks[0]
        return (
            _LEFT + (x - x_ticks[0]) / wide * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - (y - y_ticks[0]) / high * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg class="singanet-chart" role="img" aria-label="{escape(title)} by {escape(across)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>'
    ]
    for tick in y_ticks:
        _, y = place(x_ticks[0], tick)
        parts.append(
            f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in x_ticks:
        x, _ = place(tick, y_ticks[0])
        said = f"{10**tick if by_powers else tick:g}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{said}</text>')
    parts.append(
        f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(across)}</text>'
    )
    for k, (name, points) in enumerate(finite.items()):
        told = [(10**x, y) for x, y in points] if by_powers else points
        parts.append(_line(k, name, [place(x, y) for x, y in points], told))
    if with_legend:
        parts.append(_legend(list(finite)))
    return "".join([*parts, "</svg>"])


def stand_alone(charts: Sequence[str]) -> str:
    """An SVG with ``charts`` beside each other, dark on white, that needs no page around it."""
    drawn = "".join(
        f'<g transform="translate({k * WIDTH},0)">{chart}</g>' for k, chart in enumerate(charts)
    )
    width = max(len(charts), 1) * WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}"><style>{coloured(RULES, LIGHT)}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{drawn}</svg>\n'
    )


def write_chart(svg: str, where: str, path: str | PathLike[str] | None) -> str:
    """``svg``, written to ``path`` where one is given.

    Errors: `ArgumentError` for another suffix than .svg; `FileAccessError`.
    """
    if path is not None:
        target = path_of(path)
        expect_suffix(where, target, (".svg",))
        with replacing(target) as beside:
            beside.write_text(svg, encoding="utf-8")
    return svg


def line_mark(k: int) -> str:
    """A piece of the ``k``-th line of a chart, for a legend."""
    return (
        '<svg class="singanet-chart" width="34" height="10" viewBox="0 0 34 10" aria-hidden="true">'
        f'<line {_look(k)} x1="1" x2="33" y1="5" y2="5"/></svg>'
    )


def _look(k: int) -> str:
    """Colour and dashes of the ``k``-th line: the first four differ in both."""
    dashes = _DASHES[(k + k // 4) % 4]
    return f'class="line s{k % 4}" stroke-dasharray="{dashes}"'


def _line(k: int, name: str, placed: Points, points: Points) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    drawn = f'<polyline {_look(k)} points="{path}"><title>{escape(name)}</title></polyline>'
    if len(points) <= _MOST_POINTS:
        drawn += "".join(
            f'<circle class="dot s{k % 4}" cx="{a:.1f}" cy="{b:.1f}" r="2.6">'
            f"<title>{escape(name)}: {y:.6g} at {x:g}</title></circle>"
            for (a, b), (x, y) in zip(placed, points, strict=True)
        )
    return drawn


def _legend(names: list[str]) -> str:
    """The names from the right end of the title's line, each behind a piece of its line."""
    drawn, right = "", float(WIDTH - _RIGHT)
    for k in reversed(range(len(names))):
        left = right - 6.4 * len(names[k])
        drawn += (
            f'<line {_look(k)} x1="{left - 26:.1f}" x2="{left - 5:.1f}" y1="12" y2="12"/>'
            f'<text x="{left:.1f}" y="16">{escape(names[k])}</text>'
        )
        right = left - 40
    return drawn


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Four to ten round numbers from at most ``low`` to at least ``high``, fewer if ``whole``."""
    if high - low < max(1e-9 * abs(low), 1e-9 * abs(high), _LEAST):
        spread = abs(high) / 2 if abs(high) > _LEAST else 0.5
        if whole and abs(high) < 1e9:
            spread = 1.0
        low, high = low - spread, high + spread
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]
