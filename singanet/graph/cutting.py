"""A part of a net as a net: what some of its layers need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from singanet.errors import ArgumentError, CallOrderError
from singanet.graph.building import GraphBuilder
from singanet.graph.nodes import Node
from singanet.layers.symbol import stage


def add_upto(made: GraphBuilder, net: GraphBuilder, names: Sequence[str]) -> None:
    """Add to the empty net ``made`` all layers of ``net`` on which ``names`` depend.

    Layers and nested nets are shared. Inputs keep their order, and `add` goes on behind the last of
    ``names``. Errors: no name, or an unknown one; one inside of a nested net; a net
    whose arrays are not in memory.
    """
    if not names:
        raise ArgumentError(
            "net.upto",
            expected="at least one layer",
            received="none",
            advice="name the last one to keep, such as the one before the head",
        )
    net._expect_layers(names, "net.upto")
    wanted = list(dict.fromkeys(names))
    nodes = {node.name: node for node in net.nodes()}
    needed = _needed(nodes, wanted)
    _expect_whole(needed, wanted)
    inputs = net.ports().inputs
    # Inputs first, as lists feed them: among layers that are ready the first added comes first.
    order = {node.name: k for k, node in enumerate(net.ordered(), len(inputs))}
    order |= {name: k for k, name in enumerate(inputs)}
    uses = dict.fromkeys(_use(node) for node in sorted(needed, key=lambda n: order[n.name]))
    for name in uses:
        node = nodes[name]
        entries = net.use_of(name) if node.within is not None else [name]
        sources: list[tuple[str, int | None]] = [
            (source.name, index) for entry in entries for source, index in nodes[entry].inputs
        ]
        with stage(node.stage):
            part = node.layer if node.within is None else net.nested[name]
            made.add_node(part, sources, name)
    outputs = [
        (name, index) for name in wanted for index in range(len(nodes[name].output_shapes()))
    ]
    made._last = wanted[-1]
    made.declare([name for name in inputs if name in made], outputs)


def _use(node: Node) -> str:
    """The node itself, or the nested net that it is part of."""
    return node.name if node.within is None else node.within


def _needed(nodes: Mapping[str, Node], names: Sequence[str]) -> list[Node]:
    """The nodes from which one of ``names`` can be reached, and these."""
    found: dict[str, Node] = {}
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found[name] = nodes[name]
            stack += [source.name for source, _ in nodes[name].inputs]
    return list(found.values())


def _expect_whole(needed: Iterable[Node], wanted: Sequence[str]) -> None:
    """Errors: a part of a nested net, or arrays that are elsewhere."""
    ends = {node.name for node in needed if node.within == node.name}
    for node in needed:
        if node.within is not None and node.within not in ends:
            inner = node.name.removeprefix(f"{node.within}/")
            raise ArgumentError(
                f"net.upto, layer {node.name!r}",
                expected="layers of the net, or nested nets as a whole",
                received=f"one inside of {node.within!r}",
                advice=f"cut that: net.nested[{node.within!r}].upto({inner!r})",
            )
        if any(not param.storage.in_memory for param in node.layer.params.values()):
            raise CallOrderError(
                "net.upto",
                expected="a net in memory, of which another may have a part",
                received=f"{node.name!r} in a folder or on other processes",
                advice="call net.onload(), or cut it before it is offloaded or shared out",
            )
