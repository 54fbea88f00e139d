"""A drawing as SVG."""

from __future__ import annotations

from html import escape

from singanet.picture.colours import coloured
from singanet.picture.drawing import (
    LINE_HEIGHT,
    NAME_SIZE,
    PADDING,
    TEXT_SIZE,
    Box,
    Drawing,
    Line,
)

# Text on fills reaches a contrast of 7 : 1, and no meaning rests on colour alone.
_LIGHT = {
    "page": "#fff",
    "ink": "#1b2530",
    "faint": "#46535f",
    "line": "#71808e",
    "edge": "#9aa6b1",
    "plain": "#f3f5f7",
    "trained": "#dcebf9",
    "input": "#e4f2e4",
}
_DARK = {
    "page": "#14191f",
    "ink": "#eef2f5",
    "faint": "#c3ccd4",
    "line": "#8d9aa6",
    "edge": "#5d6a76",
    "plain": "#232a32",
    "trained": "#17395a",
    "input": "#1e4023",
}
_RULES = """
.sn-net .page{fill:var(--page)}
.sn-net text{fill:var(--faint)}.sn-net .name{fill:var(--ink);font-weight:600}
.sn-net .box{stroke:var(--edge);stroke-width:1.2}
.sn-net .plain{fill:var(--plain)}.sn-net .trained{fill:var(--trained)}
.sn-net .input{fill:var(--input)}
.sn-net .shared{stroke:var(--ink);stroke-dasharray:5 3}
.sn-net path{fill:none;stroke:var(--line);stroke-width:1.4}
.sn-net .tip{fill:var(--line);stroke:none}
"""


def to_svg(drawing: Drawing) -> str:
    """The SVG text, one element a shape; names are escaped."""
    width, height = round(drawing.width), round(drawing.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sn-net" role="img" '
        f'aria-label="graph of {len(drawing.boxes)} layers" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui,sans-serif" '
        f'font-size="{TEXT_SIZE:g}"><style>{coloured(_RULES, _LIGHT, _DARK)}</style>',
        '<rect class="page" width="100%" height="100%"/>',
        *map(_line, drawing.lines),
        *map(_box, drawing.boxes),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _line(line: Line) -> str:
    (x, y), *rest = line.points
    end = line.points[-1]
    path = f"M{x:.1f},{y:.1f}" + "".join(
        f"C{a:.1f},{(b + d) / 2:.1f} {c:.1f},{(b + d) / 2:.1f} {c:.1f},{d:.1f}"
        for (a, b), (c, d) in zip(line.points, rest, strict=False)
    )
    tip = f'<path class="tip" d="M{end[0]:.1f},{end[1]:.1f}l-4,-7h8z"/>'
    label = escape(line.label)
    words = f'<text x="{end[0] + 6:.1f}" y="{end[1] - 4:.1f}">{label}</text>' if label else ""
    return f'<path d="{path}"/>{tip}{words}'


def _box(box: Box) -> str:
    (x, y), (width, height) = box.corner, box.size
    shared = " shared" if box.shared else ""
    parts = [
        f'<rect class="box {box.style}{shared}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="6"/>'
    ]
    for k, text in enumerate(box.lines):
        name = f' class="name" font-size="{NAME_SIZE:g}"' if k == 0 else ""
        baseline = y + 0.6 * PADDING + LINE_HEIGHT * (k + 0.75)
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="{baseline:.1f}" text-anchor="middle"{name}>'
            f"{escape(text)}</text>"
        )
    return "<g>" + "".join(parts) + "</g>"
