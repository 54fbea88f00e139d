"""Pictures of nets: a layout of the graph, drawn as SVG or PNG.

After Sugiyama, Tagawa and Toda, 1981: longest paths define the rows, an edge over several rows has
a point in each, and rows are sorted by the mean position of their neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, pairwise
from os import PathLike
from typing import TYPE_CHECKING

from singanet.base.charts import dark_rules, write_chart
from singanet.base.elsewhere import names_of
from singanet.base.notebooks import Shown
from singanet.summary import (
    Folded,
    Row,
    folded,
    layer_rows,
    output_of,
    shape_text,
    summary_table,
    without,
)

if TYPE_CHECKING:
    from singanet.engine.net import Net

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
_PORT = 7.0
_FRAME_TOP = 10.0


@dataclass(frozen=True)
class Box:
    """A layer: ``lines`` of text, the name first; ``style`` is input, trained or plain.

    A "frame" is around the layers of a block and has its label; a "port" is a dot without text.
    """

    corner: Point
    size: Size
    lines: list[str]
    style: str
    shared: bool = False


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

    def at(self, x: float, y: float) -> Drawing:
        """Return the drawing moved by ``x`` and ``y``."""
        boxes = [replace(b, corner=(b.corner[0] + x, b.corner[1] + y)) for b in self.boxes]
        lines = [replace(n, points=[(a + x, b + y) for a, b in n.points]) for n in self.lines]
        return replace(self, boxes=boxes, lines=lines)


class _Artist:
    """Draws the parts of a net with ``rows``."""

    def __init__(self, rows: Sequence[Row]) -> None:
        names = {row.name for row in rows}
        self.lenders = {row.shared_with for row in rows}
        self.reads = {row.name: [output_of(each, names) for each in row.sources] for row in rows}
        self.readers: dict[str, set[str]] = {name: set() for name in names}
        for reader, sources in self.reads.items():
            for name, _ in sources:
                self.readers[name].add(reader)

    def drawing(self, parts: Sequence[Row | Folded], block: Folded | None = None) -> Drawing:
        """Return the drawing of all ``parts``, or of a ``block`` with dots where lines cross it."""
        reads = [self._read_by(part) for part in parts]
        where = {name: k for k, part in enumerate(parts) for name in _names(part)}
        entries = list(dict.fromkeys(n for some in reads for n, _ in some if n not in where))
        where = {name: k + len(entries) for name, k in where.items()}
        where.update((name, k) for k, name in enumerate(entries))
        port = Drawing(_PORT, _PORT, [Box((0.0, 0.0), (_PORT, _PORT), [], "port")], [])
        items = [port for _ in entries]
        items += [self._item(part, "" if block is None else block.prefix) for part in parts]
        edges = [
            ((where[name], k), label)
            for k, some in enumerate(reads, len(entries))
            for name, label in some
        ]
        if block is not None:
            edges += [((where[name], len(items)), "") for name in self._read_behind(block)]
            items.append(port)
        layout = place([(item.width, item.height) for item in items], [ends for ends, _ in edges])
        moved = [item.at(*corner) for item, corner in zip(items, layout.corners, strict=True)]
        lines = [Line(r, label) for r, (_, label) in zip(layout.routes, edges, strict=True)]
        return Drawing(
            layout.width,
            layout.height,
            [box for item in moved for box in item.boxes],
            [*lines, *(line for item in moved for line in item.lines)],
        )

    def _read_by(self, part: Row | Folded) -> list[tuple[str, str]]:
        """Return the outputs that ``part`` reads; a block its own none, and others once."""
        if isinstance(part, Row):
            return self.reads[part.name]
        first = [row.name for row in part.rows[: len(part.rows) // part.count]]
        reads = (each for name in first for each in self.reads[name] if each[0] not in first)
        return list(dict.fromkeys(reads))

    def _read_behind(self, block: Folded) -> list[str]:
        """Return the rows of the first block that the next one reads, or rows behind the last."""
        names = [row.name for row in block.rows]
        size = len(names) // block.count
        first, last, every = names[:size], names[-size:], {*names}
        pairs = zip(first, last, strict=True)
        return [a for a, z in pairs if self.readers[a] - {*first} or self.readers[z] - every]

    def _item(self, part: Row | Folded, prefix: str) -> Drawing:
        if isinstance(part, Row):
            lends = part.name in self.lenders
            lines = _text(part, lends, prefix)
            shared = lends or part.shared_with is not None
            size = _size(lines)
            return Drawing(*size, [Box((0.0, 0.0), size, lines, _style(part), shared)], [])
        inner = self.drawing(part.parts, part)
        size = max(inner.width, _size([part.label])[0]), inner.height + _FRAME_TOP
        inner = inner.at((size[0] - inner.width) / 2, _FRAME_TOP)
        frame = Box((0.0, 0.0), size, [part.label], "frame")
        return Drawing(*size, [frame, *inner.boxes], inner.lines)


def _names(part: Row | Folded) -> list[str]:
    return [row.name for row in ([part] if isinstance(part, Row) else part.rows)]


def _text(row: Row, lends: bool, prefix: str) -> list[str]:
    shapes = row.output_shape
    if row.in_shapes and row.kind != "Input":
        shapes = f"{', '.join(map(shape_text, row.in_shapes))} → {shapes}"
    lines = [without(prefix, row.name), f"{row.kind} {row.details}".strip(), shapes]
    if row.parameters:
        status = {"frozen": ", frozen", "partly": ", partly trained"}.get(row.status, "")
        lines.append(f"{row.parameters:,} parameters{', shared' if lends else ''}{status}")
    if row.shared_with is not None:
        lines.append(f"shares parameters of {row.shared_with}")
    return [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in lines]


def _style(row: Row) -> str:
    if row.kind == "Input":
        return "input"
    return "trained" if row.trained or row.shared_with is not None else "plain"


def _size(lines: list[str]) -> Size:
    name, *rest = lines
    width = max([len(name) * _NAME_CHAR, *(len(line) * _TEXT_CHAR for line in rest)])
    return width + 2 * PADDING, LINE_HEIGHT * len(lines) + 1.2 * PADDING


def _curves(points: Sequence[Point]) -> list[tuple[Point, Point, Point]]:
    """Return vertical Bézier curves from point to point, without the first point."""
    return [((a, (b + d) / 2), (c, (b + d) / 2), (c, d)) for (a, b), (c, d) in pairwise(points)]


# Text on fills has a contrast of 7 : 1, and no meaning depends on colour alone.
_LIGHT = {
    "page": "#ffffff",
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


def to_svg(drawing: Drawing, layers: int) -> str:
    """Return the SVG text, one element per shape; names are escaped."""
    width, height = round(drawing.width), round(drawing.height)
    frames = [box for box in drawing.boxes if box.style == "frame"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sn-net" role="img" '
        f'aria-label="graph of {layers} layers" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui,sans-serif" '
        f'font-size="{TEXT_SIZE:g}">{dark_rules(_LIGHT, _DARK, ".sn-net ")}',
        f'<rect class="page" width="100%" height="100%" {_painted("page")}/>',
        *map(_box, frames),
        *map(_line, drawing.lines),
        *(_box(box) for box in drawing.boxes if box.style != "frame"),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _painted(fill: str | None, stroke: str | None = None) -> str:
    """Return the style of a shape with these colours, literally."""
    colours = {"fill": fill, "stroke": stroke}
    named = [f"{what}: {_LIGHT[name] if name else 'none'}" for what, name in colours.items()]
    return f'style="{";".join(named)}"'


def _line(line: Line) -> str:
    (x, y), end = line.points[0], line.points[-1]
    path = f"M{x:.1f},{y:.1f}" + "".join(
        "C" + " ".join(f"{a:.1f},{b:.1f}" for a, b in piece) for piece in _curves(line.points)
    )
    tip = f'<path class="tip" d="M{end[0]:.1f},{end[1]:.1f}l-4,-7h8z" {_painted("line")}/>'
    words = _words(line.label, end[0] + 6, end[1] - 4) if line.label else ""
    return f'<path d="{path}" stroke-width="1.4" {_painted(None, "line")}/>{tip}{words}'


def _box(box: Box) -> str:
    (x, y), (width, height) = box.corner, box.size
    port, frame = box.style == "port", box.style == "frame"
    fill = "line" if port else None if frame else box.style
    edge = None if port else "ink" if box.shared else "edge"
    dashes = ' stroke-dasharray="5 3"' if box.shared else ""
    parts = [
        f'<rect class="box {box.style}{" shared" if box.shared else ""}" x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="{10 if frame else 6}" '
        f'stroke-width="1.2"{dashes} {_painted(fill, edge)}/>'
    ]
    if frame:
        parts.append(_words(box.lines[0], x + PADDING, y + LINE_HEIGHT + 2, name=True))
    else:
        for k, text in enumerate(box.lines):
            baseline = y + 0.6 * PADDING + LINE_HEIGHT * (k + 0.75)
            parts.append(_words(text, x + width / 2, baseline, name=k == 0, middle=True))
    return "<g>" + "".join(parts) + "</g>"


def _words(text: str, x: float, y: float, name: bool = False, middle: bool = False) -> str:
    font = f' class="name" font-size="{NAME_SIZE:g}" font-weight="600"' if name else ""
    anchor = ' text-anchor="middle"' if middle else ""
    colour = _painted("ink" if name else "faint")
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{font} {colour}>{escape(text)}</text>'


def plot_net(net: Net, path: str | PathLike[str] | None = None, fold: bool = True) -> Shown:
    """Return the picture of ``net`` as SVG text, for `FeedForwardNet.plot`.

    Args:
        net: The net.
        path: Path of a .svg or .png file to write as well; None for none.
        fold: Whether equal blocks of a net of more than 30 layers are one.
    """

    def draw() -> str:
        rows = layer_rows(net)
        return to_svg(_Artist(rows).drawing(folded(rows) if fold else rows), len(rows))

    return write_chart(draw, "net.plot", path)


def net_html(net: Net) -> str:
    """Return the table and the picture of a net as HTML, the picture in a frame that scrolls.

    A net without layers is a line of text.

    Args:
        net: The net.
    """
    if not (net.pending or net._graph.nodes):
        return "<p>a net without layers</p>"
    frame = "max-height:40em;overflow:auto;margin-top:.5em"
    return f'<div>{summary_table(net).html}<div style="{frame}">{plot_net(net)}</div></div>'
