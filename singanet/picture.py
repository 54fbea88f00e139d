"""Pictures of nets: a layout of the graph, drawn as SVG or PNG.

After Sugiyama, Tagawa and Toda, 1981: longest paths define the rows, an edge over several rows has
a point in each, and rows are sorted by the mean position of their neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from os import PathLike
from typing import TYPE_CHECKING

from singanet.base.charts import write_chart
from singanet.base.elsewhere import names_of
from singanet.base.notebooks import Shown
from singanet.summary import Row, layer_rows, shape_text

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node

__all__ = ["net_html", "plot_net"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


_RANKS_SWEEPS = 8

Edge = tuple[int, int]


@dataclass
class PointRows:
    """Points by row, left to right; points from ``count`` on belong to long edges.

    ``chains`` has the points of each edge from its source to its target.
    """

    count: int
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]
    chains: list[list[int]]


def make_rows(count: int, edges: Sequence[Edge]) -> PointRows:
    """Return rows for ``count`` nodes whose edges point from lower to higher numbers."""
    rank = _ranks(count, edges)
    rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for node in range(count):
        rows[rank[node]].append(node)
    made = PointRows(count, rows, [[] for _ in rank], [[] for _ in rank], [])
    for source, target in edges:
        made.chains.append(_chain(made, source, target, rank))
    for sweep in range(_RANKS_SWEEPS):
        _reorder(made, downwards=sweep % 2 == 0)
    return made


def _ranks(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return the row of each node: below its lowest source, or just above its first reader."""
    sources: list[list[int]] = [[] for _ in range(count)]
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    rank = [0] * count
    for node in range(count):
        rank[node] = max((rank[source] + 1 for source in sources[node]), default=0)
    for node in range(count):
        if not sources[node] and targets[node]:
            rank[node] = min(rank[target] for target in targets[node]) - 1
    return rank


def _chain(made: PointRows, source: int, target: int, rank: list[int]) -> list[int]:
    """Return the points of an edge, with new ones in the rows between."""
    chain = [source]
    for row in range(rank[source] + 1, rank[target]):
        point = len(made.above)
        made.above.append([])
        made.below.append([])
        made.rows[row].append(point)
        chain.append(point)
    chain.append(target)
    for upper, lower in itertools.pairwise(chain):
        made.below[upper].append(lower)
        made.above[lower].append(upper)
    return chain


def _reorder(made: PointRows, downwards: bool) -> None:
    """Sort every row by the mean position of the neighbours in the previous row."""
    rows = made.rows if downwards else made.rows[::-1]
    neighbours = made.above if downwards else made.below
    place: dict[int, float] = {}
    for row in rows:
        for k, point in enumerate(row):
            near = [place[other] for other in neighbours[point] if other in place]
            # A point without neighbours keeps its position.
            place[point] = sum(near) / len(near) if near else k / max(len(row) - 1, 1)
        row.sort(key=place.__getitem__)
        for k, point in enumerate(row):
            place[point] = k / (len(row) - 1) if len(row) > 1 else 0.5


_GAP = 24.0
_ROW_GAP = 34.0
_LINE_WIDTH = 10.0
_PASSING_PULL = 0.1
_PORT_GAP = 16.0
_MARGIN = 16.0
_SWEEPS = 24

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True)
class PictureLayout:
    """The upper left corners of the boxes, and the points of each edge, top to bottom."""

    width: float
    height: float
    corners: list[Point]
    routes: list[list[Point]]


def place(sizes: Sequence[Size], edges: Sequence[Edge]) -> PictureLayout:
    """Lay out boxes of ``sizes`` whose edges point from lower to higher numbers."""
    made = make_rows(len(sizes), edges)
    widths = [
        sizes[point][0] if point < made.count else _LINE_WIDTH for point in range(len(made.above))
    ]
    across = _across(made, widths)
    tops, heights = _down(made, sizes)
    left = min((x - w / 2 for x, w in zip(across, widths, strict=True)), default=0.0)
    right = max((x + w / 2 for x, w in zip(across, widths, strict=True)), default=0.0)
    across = [x - left + _MARGIN for x in across]
    row_of = {point: k for k, row in enumerate(made.rows) for point in row}
    corners = []
    for node, (width, height) in enumerate(sizes):
        row = row_of[node]
        corners.append((across[node] - width / 2, tops[row] + (heights[row] - height) / 2))
    routes = []
    starts = _ports(made.count, [(chain[0], chain[1]) for chain in made.chains], sizes, across)
    ends = _ports(made.count, [(chain[-1], chain[-2]) for chain in made.chains], sizes, across)
    for (source, *between, target), start, end in zip(made.chains, starts, ends, strict=True):
        points = [(start, corners[source][1] + sizes[source][1])]
        for point in between:
            row = row_of[point]
            points += [(across[point], tops[row]), (across[point], tops[row] + heights[row])]
        routes.append([*points, (end, corners[target][1])])
    bottom = tops[-1] + heights[-1] if tops else 0.0
    return PictureLayout(right - left + 2 * _MARGIN, bottom + _MARGIN, corners, routes)


def _ports(
    count: int, ends: list[tuple[int, int]], sizes: Sequence[Size], across: list[float]
) -> list[float]:
    """Return the position on its box of each (box, next point of the edge)."""
    at: list[list[int]] = [[] for _ in range(count)]
    for edge, (node, _) in enumerate(ends):
        at[node].append(edge)
    places = [0.0] * len(ends)
    for node, edges in enumerate(at):
        edges.sort(key=lambda edge: across[ends[edge][1]])
        step = min(_PORT_GAP, 0.8 * sizes[node][0] / max(len(edges), 1))
        for k, edge in enumerate(edges):
            places[edge] = across[node] + (k - (len(edges) - 1) / 2) * step
    return places


def _down(made: PointRows, sizes: Sequence[Size]) -> tuple[list[float], list[float]]:
    """Return the top and height of every row."""
    heights = [
        max((sizes[point][1] for point in row if point < made.count), default=0.0)
        for row in made.rows
    ]
    tops = [_MARGIN, *accumulate((h + _ROW_GAP for h in heights[:-1]), initial=_MARGIN)][1:]
    return tops, heights


def _across(made: PointRows, widths: list[float]) -> list[float]:
    """Return the centre of every point: near the mean of its neighbours, without overlaps."""
    across = [0.0] * len(widths)
    for row in made.rows:
        ends = accumulate(widths[point] + _GAP for point in row)
        for point, end in zip(row, ends, strict=True):
            across[point] = end - widths[point] / 2
    pulls = _pulls(made)
    for sweep in range(_SWEEPS):
        # The last sweep goes down and puts boxes straight below their inputs.
        down = sweep % 2 == 1
        neighbours = made.above if down else made.below
        for row in made.rows if down else made.rows[::-1]:
            wishes = [_target(point, neighbours[point], across, pulls) for point in row]
            weights = [pulls[point] for point in row]
            for point, x in zip(row, _apart(row, wishes, weights, widths), strict=True):
                across[point] = x
    return across


def _pulls(made: PointRows) -> list[float]:
    """Return the weight of each point: low on lines that skip layers, as in a residual net."""
    pulls = [1.0] * len(made.above)
    for source, *between, _ in made.chains:
        if len(made.below[source]) > 1:
            for point in between:
                pulls[point] = _PASSING_PULL
    return pulls


def _target(point: int, near: list[int], across: list[float], pulls: list[float]) -> float:
    """Return the weighted mean position of the neighbours, or the position of the point."""
    total = sum(pulls[k] for k in near)
    return sum(pulls[k] * across[k] for k in near) / total if near else across[point]


def _apart(
    row: list[int], wishes: list[float], weights: list[float], widths: list[float]
) -> list[float]:
    """Return the nearest positions to ``wishes``, by weighted squares, with the minimum distances.

    Without the distances the positions must only ascend: pool adjacent violators.
    """
    steps = [(widths[a] + widths[b]) / 2 + _GAP for a, b in pairwise(row)]
    offsets = list(accumulate(steps, initial=0.0))
    pools: list[tuple[float, float, int]] = []
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean, total, count = wish - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, members = pools.pop()
            mean = (mean * total + other * more) / (total + more)
            total, count = total + more, count + members
        pools.append((mean, total, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]


PADDING = 10.0
NAME_SIZE, TEXT_SIZE = 13.0, 11.0
LINE_HEIGHT = 15.0
_NAME_CHAR, _TEXT_CHAR = 7.8, 6.3
_LONGEST = 44


@dataclass(frozen=True)
class Box:
    """A layer: ``lines`` of text, the name first; ``style`` is input, trained or plain."""

    corner: Point
    size: tuple[float, float]
    lines: list[str]
    style: str
    shared: bool


@dataclass(frozen=True)
class Line:
    """An edge through ``points``; ``label`` is the index of one of several outputs."""

    points: list[Point]
    label: str = ""


@dataclass(frozen=True)
class Drawing:
    """All shapes of a picture, in pixels."""

    width: float
    height: float
    boxes: list[Box]
    lines: list[Line]


def draw(net: Net) -> Drawing:
    """Return the drawing of ``net``."""
    rows = layer_rows(net)
    nodes = {node.name: node for node in net.nodes()}
    lenders = {row.shared_with for row in rows}
    texts = [_text(row, nodes[row.name], row.name in lenders) for row in rows]
    sizes = [_size(lines) for lines in texts]
    number = {row.name: k for k, row in enumerate(rows)}
    edges, labels = [], []
    for row in rows:
        for source, index in nodes[row.name].inputs:
            edges.append((number[source.name], number[row.name]))
            labels.append(f"[{index}]" if len(source.output_shapes()) > 1 else "")
    layout = place(sizes, edges)
    boxes = [
        Box(corner, size, lines, _style(row), row.shared_with is not None or row.name in lenders)
        for corner, size, lines, row in zip(layout.corners, sizes, texts, rows, strict=True)
    ]
    lines = [Line(route, label) for route, label in zip(layout.routes, labels, strict=True)]
    return Drawing(layout.width, layout.height, boxes, lines)


def _text(row: Row, node: Node, lends: bool) -> list[str]:
    shapes = row.output_shape
    if not row.sources and row.kind == "Dummy":
        return [row.name, f"input {shapes}"]
    if not row.sources and isinstance(node.layer.in_shapes, tuple):
        shapes = f"{shape_text(node.layer.in_shapes)} → {shapes}"
    lines = [row.name, f"{row.kind} {shapes}"]
    if row.parameters:
        notes = (", shared" if lends else "") + (", not trained" if not row.trained else "")
        lines.append(f"{row.parameters:,} parameters{notes}")
    if row.shared_with is not None:
        lines.append(f"shares parameters of {row.shared_with}")
    return [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in lines]


def _style(row: Row) -> str:
    if not row.sources:
        return "input"
    return "trained" if row.trained or row.shared_with is not None else "plain"


def _size(lines: list[str]) -> tuple[float, float]:
    name, *rest = lines
    width = max([len(name) * _NAME_CHAR, *(len(line) * _TEXT_CHAR for line in rest)])
    return width + 2 * PADDING, LINE_HEIGHT * len(lines) + 1.2 * PADDING


def _curves(points: Sequence[Point]) -> list[tuple[Point, Point, Point]]:
    """Return vertical Bézier curves from point to point, without the first point."""
    return [((a, (b + d) / 2), (c, (b + d) / 2), (c, d)) for (a, b), (c, d) in pairwise(points)]


def coloured(rules: str, light: Mapping[str, str], dark: Mapping[str, str]) -> str:
    """Return CSS ``rules`` with a colour for every ``var(--name)``.

    Programs other than browsers do not support variables, and paint black instead. Dark colours are
    in a media query, which other programs ignore.
    """
    plain, other = rules, rules
    for name, colour in light.items():
        plain = plain.replace(f"var(--{name})", colour)
        other = other.replace(f"var(--{name})", dark[name])
    return f"{plain}@media (prefers-color-scheme:dark){{{other}}}"


# Text on fills has a contrast of 7 : 1, and no meaning depends on colour alone.
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
    """Return the SVG text, one element per shape; names are escaped."""
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
    (x, y), end = line.points[0], line.points[-1]
    path = f"M{x:.1f},{y:.1f}" + "".join(
        "C" + " ".join(f"{a:.1f},{b:.1f}" for a, b in piece) for piece in _curves(line.points)
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


def plot_net(net: Net, path: str | PathLike[str] | None = None) -> Shown:
    """Return the picture of ``net`` as SVG text, for `FeedForwardNet.plot`.

    Args:
        net: The net.
        path: Path of a .svg or .png file to write as well; None for none.
    """
    return write_chart(lambda: to_svg(draw(net)), "net.plot", path)


def net_html(net: Net) -> str:
    """Return the table and the picture of a net as HTML, the picture in a frame that scrolls.

    A net without layers is a line of text.

    Args:
        net: The net.
    """
    from singanet.summary import summary_html

    if net.pending:
        parts = ", ".join(f"<code>{escape(repr(part))}</code>" for part in net.pending)
        return f"<p>a net whose layers are built when the shape of its input is known: {parts}</p>"
    if not net._graph.nodes:
        return "<p>a net without layers</p>"
    frame = "max-height:40em;overflow:auto;margin-top:.5em"
    return f'<div>{summary_html(net)}<div style="{frame}">{plot_net(net)}</div></div>'
