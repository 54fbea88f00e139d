"""What a net consists of: its nodes, their names, where arrays enter and leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from singanet.building_errors import check_name, no_shape, other_ports
from singanet.errors import CallOrderError, UnknownNameError, did_you_mean, one_of
from singanet.graph import Graph, Node
from singanet.layers.layer import Layer
from singanet.nesting import Nests, Ports, unify
from singanet.parameter import Param

if TYPE_CHECKING:
    from singanet.building import Buildable
    from singanet.net import FeedForwardNet


class Structure:
    """The graph of a net, and the nets nested in it.

    ``name`` is needed where the net is nested in another: its layers and their parameters are
    called ``name/...`` there. ``pending`` are layers of a list that wait for an input shape.
    """

    def __init__(self, name: str | None) -> None:
        check_name(name)
        self.name = name
        self.pending: list[Layer | Buildable] = []
        self._graph = Graph()
        self._nests = Nests(self._graph)
        self._ports: Ports | None = None
        self._order: tuple[int, list[Node], Ports] = (-1, [], Ports([], []))

    def __getitem__(self, name: str) -> Layer:
        """The layer called ``name``; those of a nested net are called ``net/layer``."""
        self._expect_layers([name], "net")
        return self._graph.nodes[name].layer

    def __contains__(self, name: object) -> bool:
        return name in self._graph.nodes

    @property
    def nested(self) -> Mapping[str, FeedForwardNet]:
        """The nested nets, by the name of each use."""
        return cast("dict[str, FeedForwardNet]", dict(self._nests.nets))

    def nodes(self) -> list[Node]:
        """The uses of layers, in the order of adding."""
        self.ordered()
        return list(self._graph.nodes.values())

    def ordered(self) -> list[Node]:
        """The uses of layers in topological order. Errors: an empty net, and those of the sort."""
        return self._sort()[1]

    def ports(self) -> Ports:
        """Where arrays enter and leave: as the symbols were given, else in topological order."""
        return self._ports if self._ports is not None else self._sort()[2]

    def _sort(self) -> tuple[int, list[Node], Ports]:
        """The graph's version, its nodes in order and its ports; worked out once a version."""
        if self.pending:
            raise no_shape(self.name, str(self.pending[0].name))
        if self._order[0] != self._graph.version:
            order = self._graph.order()
            if not order:
                raise CallOrderError(
                    "net",
                    expected="at least one layer",
                    received="an empty net",
                    advice="call net.add(layer) first",
                )
            unify(self._graph.nodes.values())
            outputs = [
                (node.name, index)
                for node in order
                if not node.consumers
                for index in range(len(node.output_shapes()))
            ]
            inputs = [node.name for node in order if not node.sources]
            self._order = (self._graph.version, order, Ports(inputs, outputs))
        return self._order

    @property
    def declared_ports(self) -> Ports | None:
        """Inputs and outputs in the order in which symbols gave them, if they did."""
        return self._ports

    def declare(self, inputs: list[str], outputs: list[tuple[str, int]]) -> None:
        """Say which nodes are inputs and outputs, in which order. Errors: others than there are."""
        nodes = {node.name: node for node in self.nodes()}
        self._expect_layers([*inputs, *(name for name, _ in outputs)], "net, inputs and outputs")
        starts = [node.name for node in nodes.values() if not node.sources]
        counts = {name: len(nodes[name].output_shapes()) for name, _ in outputs}
        if sorted(inputs) != sorted(starts) or any(not 0 <= k < counts[n] for n, k in outputs):
            raise other_ports(starts, counts)
        self._ports = Ports(list(inputs), list(outputs))

    @property
    def frozen_before(self) -> list[str]:
        """The nodes that were given to `freeze`."""
        return self._graph.frozen_before()

    def params_of(self, name: str) -> list[Param]:
        """The parameters of the layer or nested net added as ``name``; none is filled by this."""
        nodes = self._graph.nodes
        use = [nodes[name], *(n for n in nodes.values() if n.within == name)]
        return [param for node in use for param in node.layer.params.values()]

    def use_of(self, layer: Layer | Buildable | str) -> list[str]:
        """The nodes through which arrays enter ``layer``: itself, or the inputs of a nested net."""
        name = layer if isinstance(layer, str) else str(layer.name)
        self._expect_layers([name], "net")
        return self._nests.entries(name) if name in self._nests.nets else [name]

    def _expect_layers(self, names: Iterable[str], where: str) -> None:
        if self.pending:
            raise no_shape(self.name, str(self.pending[0].name))
        for name in names:
            if name not in self._graph.nodes:
                raise UnknownNameError(
                    where,
                    expected=f"a layer of the net: {one_of(self._graph.nodes)}",
                    received=repr(name),
                    advice=did_you_mean(name, self._graph.nodes, "check net.summary()"),
                )


def in_shapes_of(node: Node) -> list[Any]:
    """The sample shapes of all inputs of ``node``, as a list also when there is one."""
    shapes = node.layer.in_shapes
    return shapes if isinstance(shapes, list) else [shapes]
