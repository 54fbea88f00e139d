"""Which row of the picture each node stands in, and in which order along the row.

After Sugiyama, Tagawa and Toda, 1981: longest paths give the rows, an edge over several rows gets
a point in each, and rows are ordered by the mean position of their neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 8

Edge = tuple[int, int]


@dataclass
class PointRows:
    """Points by row, left to right; those from ``count`` on are where long edges pass.

    ``chains`` has for each edge the points from its source to its target.
    """

    count: int
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]
    chains: list[list[int]]


def make_rows(count: int, edges: Sequence[Edge]) -> PointRows:
    """Rows for ``count`` nodes numbered so that every edge goes from a lower to a higher one."""
    rank = _ranks(count, edges)
    rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for node in range(count):
        rows[rank[node]].append(node)
    made = PointRows(count, rows, [[] for _ in rank], [[] for _ in rank], [])
    for source, target in edges:
        made.chains.append(_chain(made, source, target, rank))
    for sweep in range(_SWEEPS):
        _reorder(made, downwards=sweep % 2 == 0)
    return made


def _ranks(count: int, edges: Sequence[Edge]) -> list[int]:
    """One below the lowest source; what has no source stands just above its first reader."""
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
    """The points of an edge, with new ones in the rows between."""
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
    """Sort every row by the mean place of the neighbours in the row before it."""
    rows = made.rows if downwards else made.rows[::-1]
    neighbours = made.above if downwards else made.below
    place: dict[int, float] = {}
    for row in rows:
        for k, point in enumerate(row):
            near = [place[other] for other in neighbours[point] if other in place]
            # Without neighbours a point stays where it is along the row.
            place[point] = sum(near) / len(near) if near else k / max(len(row) - 1, 1)
        row.sort(key=place.__getitem__)
        for k, point in enumerate(row):
            place[point] = k / (len(row) - 1) if len(row) > 1 else 0.5
