"""Nets inside nets: the layers of a nested net become nodes of the net around it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from singanet.base.described import keep
from singanet.errors import ArgumentError, GraphError, one_of
from singanet.graph.nodes import Graph, Node
from singanet.layers.dummy import Dummy
from singanet.layers.layer import Layer
from singanet.layers.symbol import drawn_stage, stage
from singanet.params.param import Param
from singanet.types import Shape, Shapes

Sources: TypeAlias = "list[tuple[str, int | None]]"


class Ports(NamedTuple):
    """The names of a net's inputs, and the names and output indices of its outputs."""

    inputs: list[str]
    outputs: list[tuple[str, int]]


class Nestable(Protocol):
    """A net that can be nested: its nodes, inputs and outputs are known, or can be built."""

    name: str | None
    pending: list[Any]

    def build(self, in_shapes: Any) -> Shapes:
        """As `GraphBuilder.build`."""

    def nodes(self) -> list[Node]:
        """As `GraphBuilder.nodes`."""

    def ports(self) -> Ports:
        """As `GraphBuilder.ports`."""


class Nests:
    """The nets nested in one, by the name of each use.

    A use adds the nodes ``use/node`` of the nested net, and behind them ``use``, which hands on
    its outputs. The layers are copies that carry the names of the net around; the arrays of
    their parameters are shared, between both nets and between all uses.
    """

    def __init__(self, graph: Graph) -> None:
        self.nets: dict[str, Any] = {}
        self._graph = graph
        # With the layer itself, so that its id stays its own.
        self._copies: dict[int, tuple[Layer, Layer]] = {}
        self._renamed: dict[int, Param] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a net that was copied or pickled, whose objects have other ids."""
        self.__dict__.update(state)
        self._copies = {id(layer): (layer, made) for layer, made in self._copies.values()}
        self._renamed = {id(param.root): param for param in self._renamed.values()}

    def add(self, net: Nestable, sources: Sources, use: str) -> Node:
        """Add a use of ``net``; on any error the graph is as it was.

        Errors: a name that is taken, another number of sources than ``net`` has inputs, shapes
        that differ.
        """
        self._graph.expect_new(use)
        if net.pending:
            net.build(self._first_shape(net, sources))
        ports, nodes = net.ports(), net.nodes()
        feeds = _shared_out(net, ports, {node.name: node for node in nodes}, sources)
        with self._graph.whole():
            for node in nodes:
                inner: Sources = [(f"{use}/{source.name}", index) for source, index in node.inputs]
                layer = self._copy(str(net.name), node.layer)
                with stage(node.stage if drawn_stage() is None else drawn_stage()):
                    self._graph.add(layer, feeds.get(node.name, inner), f"{use}/{node.name}", use)
            outputs: Sources = [(f"{use}/{name}", index) for name, index in ports.outputs]
            last = self._graph.add(Dummy(use), outputs, use, use)
        self.nets[use] = net
        return last

    def entries(self, use: str) -> list[str]:
        """The nodes through which arrays enter a use, in the order of the net's inputs."""
        return [f"{use}/{name}" for name in self.nets[use].ports().inputs]

    def _first_shape(self, net: Nestable, sources: Sources) -> Shape:
        shapes = self._graph.shapes_from(sources) if len(sources) == 1 else None
        if shapes is None:
            raise GraphError(
                f"net {net.name!r}",
                expected="one source whose shape is known, since its first layer has none",
                received=f"{len(sources)} sources: {one_of(name for name, _ in sources) or 'none'}",
                advice=f"give its first layer input_sample_shape, or call {net.name}.build(shape)",
            )
        return shapes[0]

    def _copy(self, net: str, layer: Layer) -> Layer:
        if id(layer) not in self._copies:
            params = {suffix: self._param(net, param) for suffix, param in layer.params.items()}
            self._copies[id(layer)] = (layer, with_params(layer, f"{net}/{layer.name}", params))
        return self._copies[id(layer)][1]

    def _param(self, net: str, param: Param) -> Param:
        return self._renamed.setdefault(id(param.root), param.named(f"{net}/{param.name}"))


def with_params(layer: Layer, name: str, params: Mapping[str, Param]) -> Layer:
    """A copy of ``layer`` called ``name``, which has ``params`` in place of its own."""
    made = copy.copy(layer)
    made.name = name
    keep(made, ["name"])
    made.params = dict(params)
    return made


def unify(nodes: Iterable[Node]) -> None:
    """Let each array have one parameter, and so one name, in the net: that of its first use.

    A layer may have been built to share a parameter of a nested net before that was nested.
    """
    known: dict[int, Param] = {}
    copies: dict[int, Layer] = {}
    for node in nodes:
        layer = node.layer
        params = {s: known.setdefault(id(p.root), p) for s, p in layer.params.items()}
        if any(params[suffix] is not param for suffix, param in layer.params.items()):
            if id(layer) not in copies:
                copies[id(layer)] = with_params(layer, layer.name, params)
                copies[id(layer)].arguments = _unified(layer.arguments, known)
            node.layer = copies[id(layer)]


def _unified(value: Any, known: Mapping[int, Param]) -> Any:
    if isinstance(value, Param):
        return known.get(id(value.root), value)
    if isinstance(value, dict):
        return {key: _unified(part, known) for key, part in value.items()}
    return value


def _shared_out(
    net: Nestable, ports: Ports, nodes: Mapping[str, Node], sources: Sources
) -> dict[str, Sources]:
    """The sources of each input node; none makes them inputs of the net around."""
    if not sources:
        return {}
    in_shapes = {name: nodes[name].layer.in_shapes for name in ports.inputs}
    wanted = {n: len(shapes) if isinstance(shapes, list) else 1 for n, shapes in in_shapes.items()}
    if len(sources) != sum(wanted.values()):
        raise ArgumentError(
            f"net {net.name!r}",
            expected=f"{sum(wanted.values())} sources, for its inputs {one_of(wanted)}",
            received=f"{len(sources)}: {one_of(name for name, _ in sources)}",
            advice="give one source for each input, in their order",
        )
    left = iter(sources)
    return {name: [next(left) for _ in range(count)] for name, count in wanted.items()}
