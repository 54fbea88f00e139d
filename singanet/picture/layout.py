"""Where the boxes and lines of a picture go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from singanet.picture.ranks import Edge, PointRows, make_rows

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
    """Upper left corners of the boxes, and the points that each edge passes, top to bottom."""

    width: float
    height: float
    corners: list[Point]
    routes: list[list[Point]]


def place(sizes: Sequence[Size], edges: Sequence[Edge]) -> PictureLayout:
    """Lay out boxes of ``sizes``, numbered so that every edge goes from a lower to a higher one."""
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
    """For each (box, next point of the edge) where along the box the edge meets it."""
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
    """Top and height of every row."""
    heights = [
        max((sizes[point][1] for point in row if point < made.count), default=0.0)
        for row in made.rows
    ]
    tops = [_MARGIN, *accumulate((h + _ROW_GAP for h in heights[:-1]), initial=_MARGIN)][1:]
    return tops, heights


def _across(made: PointRows, widths: list[float]) -> list[float]:
    """The middle of every point: near the mean of its neighbours', none over another."""
    across = [0.0] * len(widths)
    for row in made.rows:
        ends = accumulate(widths[point] + _GAP for point in row)
        for point, end in zip(row, ends, strict=True):
            across[point] = end - widths[point] / 2
    pulls = _pulls(made)
    for sweep in range(_SWEEPS):
        # The last sweep goes down, so that boxes end straight below what they read.
        down = sweep % 2 == 1
        neighbours = made.above if down else made.below
        for row in made.rows if down else made.rows[::-1]:
            wishes = [_wish(point, neighbours[point], across, pulls) for point in row]
            weights = [pulls[point] for point in row]
            for point, x in zip(row, _apart(row, wishes, weights, widths), strict=True):
                across[point] = x
    return across


def _pulls(made: PointRows) -> list[float]:
    """How much each point counts: little on a line that passes layers by, as in a residual net."""
    pulls = [1.0] * len(made.above)
    for source, *between, _ in made.chains:
        if len(made.below[source]) > 1:
            for point in between:
                pulls[point] = _PASSING_PULL
    return pulls


def _wish(point: int, near: list[int], across: list[float], pulls: list[float]) -> float:
    """The weighted mean place of the neighbours; without any, where the point is."""
    total = sum(pulls[k] for k in near)
    return sum(pulls[k] * across[k] for k in near) / total if near else across[point]


def _apart(
    row: list[int], wishes: list[float], weights: list[float], widths: list[float]
) -> list[float]:
    """The places nearest to ``wishes``, by weighted squares, at which no two come too near.

    Distances are taken off first, so that the places only have to rise: pool adjacent violators.
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
