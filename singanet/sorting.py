"""A stable topological sort of a net's nodes, and the errors of graphs that have none."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from singanet.errors import GraphError, did_you_mean

if TYPE_CHECKING:
    from singanet.graph import Node


def topological_order(nodes: Mapping[str, Node]) -> list[Node]:
    """The nodes, each after its sources; among the ready ones the first added comes first.

    Kahn's algorithm. Errors: a source that was never added, or a cycle, by name.
    """
    missing = {n.name: len({s.node for s in n.sources}) for n in nodes.values()}
    followers: dict[str, list[Node]] = {}
    for node in nodes.values():
        for name in {source.node for source in node.sources}:
            if name not in nodes:
                raise _unknown_source(node, name, nodes)
            followers.setdefault(name, []).append(node)
    ready = [node.position for node in nodes.values() if not node.sources]
    by_position = list(nodes.values())
    ordered: list[Node] = []
    while ready:
        node = by_position[heapq.heappop(ready)]
        ordered.append(node)
        for follower in followers.get(node.name, ()):
            missing[follower.name] -= 1
            if missing[follower.name] == 0:
                heapq.heappush(ready, follower.position)
    if len(ordered) < len(by_position):
        raise _cycle([node for node in by_position if missing[node.name] > 0])
    return ordered


def _unknown_source(node: Node, name: str, known: Iterable[str]) -> GraphError:
    return GraphError(
        f"layer {node.name!r}",
        expected="sources that are layers of the net",
        received=f"the unknown source {name!r}",
        advice=did_you_mean(name, known, f"add a layer named {name!r}"),
    )


def _cycle(left: list[Node]) -> GraphError:
    """The error that shows one cycle among the nodes the sort could not place."""
    names = {node.name: node for node in left}
    path = [left[0].name]
    seen = {path[0]: 0}
    while True:
        # A node left over always has a source left over, else it would have become ready.
        before = next(s.node for s in names[path[-1]].sources if s.node in names)
        if before in seen:
            cycle = [*path[seen[before] :], before][::-1]
            break
        seen[before] = len(path)
        path.append(before)
    shown = " -> ".join(repr(name) for name in cycle[:8]) + (" -> ..." if len(cycle) > 8 else "")
    return GraphError(
        f"layer {cycle[0]!r}",
        expected="a graph without cycles",
        received=f"the cycle {shown}",
        advice="remove one of these sources",
    )
