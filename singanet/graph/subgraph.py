"""The part of a net's graph on which chosen layers depend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from singanet.errors import ArgumentError, CallOrderError
from singanet.graph.building import GraphBuilder
from singanet.graph.nodes import Node
from singanet.layers.symbol import stage


def add_upto(made: GraphBuilder, net: GraphBuilder, names: Sequence[str]) -> None:
    """Add to the empty net ``made`` all layers of ``net`` on which ``names`` depend.

    Layers and nested nets are shared. Inputs keep their order, and a later `add` follows the last
    of ``names``. Errors: `ArgumentError` if there is no name, or a name inside a nested net;
    `UnknownNameError` if a name is unknown; `CallOrderError` if arrays are not in memory.
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
    _expect_whole(needed)
    inputs = net.ports().inputs
    # Inputs come first, the order of a list; of several ready layers the first added comes first.
    order = {node.name: k for k, node in enumerate(net.ordered(), len(inputs))}
    order |= {name: k for k, name in enumerate(inputs)}
    uses = dict.fromkeys(_use(node) for node in sorted(needed, key=lambda n: order[n.name]))
    for name in uses:
        node = nodes[name]
        edges = [edge for entry in net._use_of(name) for edge in nodes[entry].inputs]
        sources: list[tuple[str, int | None]] = [(source.name, index) for source, index in edges]
        with stage(node.stage):
            made._add_node(net[name] if node.within is None else net.nested[name], sources, name)
    outputs = [
        (name, index) for name in wanted for index in range(len(nodes[name].output_shapes()))
    ]
    made._last = wanted[-1]
    made._declare([name for name in inputs if name in made], outputs)


def _use(node: Node) -> str:
    """Return the node, or the nested net or the layer with an activation that contains it."""
    return (node.whole or node.name) if node.within is None else node.within


def _needed(nodes: Mapping[str, Node], names: Sequence[str]) -> list[Node]:
    """Return the nodes on which ``names`` depend, and these."""
    found: dict[str, Node] = {}
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found[name] = nodes[name]
            stack += [source.name for source, _ in nodes[name].inputs]
    return list(found.values())


def _expect_whole(needed: Iterable[Node]) -> None:
    """Raise an error for a part of a nested net, or for arrays not in memory."""
    ends = {node.name for node in needed if node.within == node.name}
    for node in needed:
        if node.within is not None and node.within not in ends:
            inner = node.name.removeprefix(f"{node.within}/")
            raise ArgumentError(
                f"net.upto, layer {node.name!r}",
                expected="layers of the net, or nested nets as a whole",
                received=f"a layer inside {node.within!r}",
                advice=f"cut that: net.nested[{node.within!r}].upto({inner!r})",
            )
        if node.whole is not None and node.whole not in {other.name for other in needed}:
            raise ArgumentError(
                f"net.upto, layer {node.name!r}",
                expected="layers with their activation",
                received="a layer without it",
                advice=f"cut after {node.whole!r}, or add an Activation as a layer of its own",
            )
        if any(not param.storage.in_memory for param in node.layer.params.values()):
            raise CallOrderError(
                "net.upto",
                expected="a net in memory, to share a part of",
                received=f"{node.name!r} in a folder or on other processes",
                advice="call net.onload(), or cut it while it is in memory",
            )
