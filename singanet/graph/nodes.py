"""Define the nodes of a net's graph, their order, and nested nets."""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from singanet.base.described import keep, shown
from singanet.errors import ArgumentError, GraphError, brief, did_you_mean, one_of
from singanet.layers.layer import Layer
from singanet.layers.shapes import Dummy
from singanet.layers.symbol import drawn_stage, expect_axes_said, stage
from singanet.params.param import Param
from singanet.types import GivenShapes, Shape, Shapes


@dataclass(frozen=True, slots=True)
class InputSource:
    """The source of one input: a node's name and the index of its output.

    If ``index`` is None, consumers get the outputs in the order of adding; ``turn`` counts the
    consumers before this one.
    """

    node: str
    index: int | None = None
    turn: int = 0


@dataclass(eq=False, slots=True)
class Node:
    """One use of a layer in a net; ``within`` is the use of the nested net that contains it.

    ``stage`` is its pipeline stage, if specified. ``whole`` names the node of the activation that
    `activation_of` the layer adds after it.
    """

    name: str
    layer: Layer
    position: int
    sources: tuple[InputSource, ...]
    inputs: list[tuple[Node, int]] = field(default_factory=list)
    out_shapes: Shapes | None = None
    consumers: int = 0
    within: str | None = None
    stage: int | None = None
    whole: str | None = None

    def __repr__(self) -> str:
        sources = [source.name for source, _ in self.inputs]
        return shown("Node", {"name": self.name, "inputs": sources, "shapes": self.out_shapes})

    @property
    def settled(self) -> bool:
        """Whether its inputs and shapes are known."""
        return self.out_shapes is not None

    def output_shapes(self) -> list[Shape]:
        """Return the sample shapes of all outputs, always as a list."""
        shapes = self.out_shapes
        return shapes if isinstance(shapes, list) else [] if shapes is None else [shapes]


class Graph:
    """Nodes in the order of adding; sources may be added after their first mention."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.version = 0
        self._turns: dict[str, int] = {}
        self._waiting: dict[str, list[Node]] = {}
        self._frozen_before: set[str] = set()
        self._built: list[Layer] = []
        self._before: dict[str, Node] = {}

    def layer(self, name: str) -> Layer:
        """Return the layer that was added as ``name``, without its activation."""
        return self.nodes[self.first(name)].layer

    def first(self, name: str) -> str:
        """Return the node that reads the inputs of the layer that was added as ``name``."""
        before = self._before.get(name)
        # A failed transaction leaves entries whose nodes are not in the graph.
        if before is not None and self.nodes.get(before.name) is before:
            return before.name
        return name

    def add(
        self,
        layer: Layer,
        sources: Sequence[tuple[str, int | None]],
        name: str | None = None,
        within: str | None = None,
        whole: str | None = None,
    ) -> Node:
        """Add a use of ``layer``; after an error the graph is unchanged."""
        name = name or layer.name
        self.expect_new(name)
        taken: list[InputSource] = []
        turns: dict[str, int] = {}
        for source, index in sources:
            turn = self._turns.get(source, 0) + turns.get(source, 0)
            taken.append(InputSource(source, index, turn))
            turns[source] = turns.get(source, 0) + (index is None)
        place = len(self.nodes)
        use = tuple(taken)
        node = Node(name, layer, place, use, within=within, stage=drawn_stage(), whole=whole)
        self.nodes[name] = node
        try:
            settled = self._settle(node)
        except BaseException:
            del self.nodes[name]
            raise
        for source, count in turns.items():
            self._turns[source] = self._turns.get(source, 0) + count
        self.version += 1
        if whole is not None:
            self._before[whole] = node
        for done in settled:
            self._waiting.pop(done.name, None)
        if not node.settled:
            for name in {source.node for source in node.sources}:
                if name not in self.nodes or not self.nodes[name].settled:
                    self._waiting.setdefault(name, []).append(node)
        return node

    def expect_new(self, name: str) -> None:
        """Raise `GraphError` if a node has this name."""
        if name in self.nodes:
            raise GraphError(
                f"layer {name!r}",
                expected="a name that no other layer has",
                received="the name of another layer",
                advice="rename one; to use one layer twice, call it on symbols",
            )

    @contextmanager
    def whole(self) -> Iterator[None]:
        """A transaction: an error inside restores the nodes."""
        nodes, turns = dict(self.nodes), dict(self._turns)
        waiting = {name: list(nodes) for name, nodes in self._waiting.items()}
        edges = [(node, node.inputs, node.out_shapes, node.consumers) for node in nodes.values()]
        built = len(self._built)
        try:
            yield
        except BaseException:
            self.nodes, self._turns, self._waiting = nodes, turns, waiting
            # Values cached for the nodes inside must not serve the next version.
            self.version += 1
            for node, inputs, out_shapes, consumers in edges:
                node.inputs, node.out_shapes, node.consumers = inputs, out_shapes, consumers
            for layer in self._built[built:]:
                layer._unbuild()
            del self._built[built:]
            raise

    def shapes_from(self, sources: Sequence[tuple[str, int | None]]) -> list[Shape] | None:
        """Return the sample shapes that ``sources`` would give now; None unless all are known."""
        shapes = []
        for turn, (name, index) in enumerate(sources):
            node = self.nodes.get(name)
            if node is None or not node.settled:
                return None
            before = sum(other == name and at is None for other, at in sources[:turn])
            outs = node.output_shapes()
            at = self._turns.get(name, 0) + before if index is None else index
            shapes.append(outs[min(at, len(outs) - 1)])
        return shapes

    def _settle(self, first: Node) -> list[Node]:
        """Give shapes to ``first`` and to all nodes that wait for it, or to none of them."""
        settled: list[Node] = []
        fresh: list[Layer] = []
        queue = deque([first])
        try:
            while queue:
                node = queue.popleft()
                sources = [self.nodes.get(source.node) for source in node.sources]
                if node.settled or any(s is None or not s.settled for s in sources):
                    continue
                if node.layer.out_shapes is None:
                    fresh.append(node.layer)
                self._connect(node, [s for s in sources if s is not None])
                settled.append(node)
                queue.extend(self._waiting.get(node.name, ()))
        except BaseException:
            for node in settled:
                node.out_shapes = None
                for source, _ in node.inputs:
                    source.consumers -= 1
                node.inputs = []
            for layer in fresh:
                layer._unbuild()
            raise
        self._built += fresh
        return settled

    def _connect(self, node: Node, sources: list[Node]) -> None:
        inputs = [
            (source, _output_index(node, edge, source))
            for edge, source in zip(node.sources, sources, strict=True)
        ]
        if inputs:
            shapes = [source.output_shapes()[index] for source, index in inputs]
            in_shapes: GivenShapes = shapes[0] if len(shapes) == 1 else shapes
        else:
            in_shapes = _declared_shape(node)
        for source, _ in inputs:
            if source.layer.traits.sparse and not node.layer.traits.takes_sparse:
                raise GraphError(
                    f"layer {node.name!r}, a {type(node.layer).__name__}",
                    expected="arrays to compute with",
                    received=f"the sparse input {source.name!r}, which Dense layers alone read",
                    advice="put a Dense between, or omit sparse and feed x.toarray()",
                )
        if inputs and node.layer._asks_axes(shapes[0]):
            expect_axes_said(node.layer, _upwards(inputs[0][0]))
        node.out_shapes = node.layer.build(in_shapes)
        node.inputs = inputs
        for source, _ in inputs:
            source.consumers += 1

    def _refit(self) -> None:
        """Record that layers have new parameters."""
        self.version += 1

    def freeze(self, name: str) -> None:
        """Freeze all nodes before ``name``, including later additions."""
        self._frozen_before.add(name)
        self.version += 1

    def unfreeze(self, name: str | None = None) -> None:
        """Undo `freeze` of ``name``, or of all. Errors: `ArgumentError` if it was not frozen."""
        if name is not None and name not in self._frozen_before:
            raise ArgumentError(
                "net.unfreeze",
                expected=f"a layer given to freeze: {one_of(sorted(self._frozen_before))}",
                received=brief(name),
                advice="call unfreeze() to undo every freeze",
            )
        self._frozen_before -= self._frozen_before if name is None else {name}
        self.version += 1

    def frozen_before(self) -> list[str]:
        """Return the nodes passed to `freeze`."""
        return sorted(self._frozen_before)

    def frozen(self) -> set[str]:
        """Return the nodes on which a node passed to `freeze` depends."""
        found: set[str] = set()
        stack = [source for name in self._frozen_before for source, _ in self.nodes[name].inputs]
        while stack:
            node = stack.pop()
            if node.name not in found:
                found.add(node.name)
                stack += [source for source, _ in node.inputs]
        return found

    def order(self) -> list[Node]:
        """Return the nodes in topological order, see `topological_order`."""
        return topological_order(self.nodes)


def _upwards(node: Node) -> Iterator[Layer]:
    """Yield the layers from ``node``'s upwards, along first inputs."""
    yield node.layer
    while node.inputs:
        node = node.inputs[0][0]
        yield node.layer


def _output_index(node: Node, edge: InputSource, source: Node) -> int:
    """Return the output index of an edge, checked against the number of outputs."""
    count = len(source.output_shapes())
    if edge.index is None:
        index = 0 if not isinstance(source.out_shapes, list) else edge.turn
        advice = f"name the output, as in src=({source.name!r}, 0), or add fewer consumers"
    else:
        index = edge.index
        advice = f"use an index below {count}"
    if not 0 <= index < count:
        raise GraphError(
            f"layer {node.name!r}",
            expected=f"an output of {source.name!r}, which has {count}",
            received=f"output {index}",
            advice=advice,
        )
    return index


def _declared_shape(node: Node) -> GivenShapes:
    shape = node.layer.input_shape
    if shape is None:
        raise GraphError(
            f"layer {node.name!r}",
            expected="input_shape, since it is an input of the net",
            received="None",
            advice="pass input_shape=(...) without the batch axis, or give it a source",
        )
    return shape


def topological_order(nodes: Mapping[str, Node]) -> list[Node]:
    """Return the nodes, each after its sources; of the ready ones the first added comes first.

    Kahn's algorithm. Errors: `GraphError` if a source was never added, or for a cycle, by name.
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
    """Return the error that shows one cycle among the nodes that could not be sorted."""
    names = {node.name: node for node in left}
    path = [left[0].name]
    seen = {path[0]: 0}
    while True:
        # A remaining node always has a remaining source; otherwise it would be ready.
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
        """Build the net, see `GraphBuilder.build`."""

    def nodes(self) -> list[Node]:
        """Return the uses of layers, see `GraphBuilder.nodes`."""

    def ports(self) -> Ports:
        """Return inputs and outputs, see `GraphBuilder.ports`."""


class Nests:
    """The nets nested in one, by the name of each use.

    A use adds the nodes ``use/node`` of the nested net, and then ``use``, which returns its
    outputs. The layers are copies with names in the outer net; their parameters share arrays
    between both nets and between all uses.
    """

    def __init__(self, graph: Graph) -> None:
        self.nets: dict[str, Any] = {}
        self._graph = graph
        # With the layer itself, so that its id stays unique.
        self._copies: dict[int, tuple[Layer, Layer]] = {}
        self._renamed: dict[int, Param] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled net, whose objects have other ids."""
        self.__dict__.update(state)
        self._copies = {id(layer): (layer, made) for layer, made in self._copies.values()}
        self._renamed = {id(param.root): param for param in self._renamed.values()}

    def add(self, net: Nestable, sources: Sources, use: str) -> Node:
        """Add a use of ``net``; after an error the graph is unchanged.

        Errors: `GraphError` if the name is in use or shapes differ, `ArgumentError` if ``sources``
        do not match the inputs in number.
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
                    given = feeds.get(node.name, inner)
                    whole = node.whole and f"{use}/{node.whole}"
                    self._graph.add(layer, given, f"{use}/{node.name}", use, whole)
            outputs: Sources = [(f"{use}/{name}", index) for name, index in ports.outputs]
            last = self._graph.add(Dummy(use), outputs, use, use)
        self.nets[use] = net
        return last

    def entries(self, use: str) -> list[str]:
        """Return the nodes where arrays enter a use, in the order of the net's inputs."""
        return [f"{use}/{name}" for name in self.nets[use].ports().inputs]

    def _first_shape(self, net: Nestable, sources: Sources) -> Shape:
        shapes = self._graph.shapes_from(sources) if len(sources) == 1 else None
        if shapes is None:
            raise GraphError(
                f"net {net.name!r}",
                expected="one source whose shape is known, since its first layer has none",
                received=f"{len(sources)} sources: {one_of(name for name, _ in sources) or 'none'}",
                advice=f"give its first layer input_shape, or call {net.name}.build(shape)",
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
    """Return a copy of ``layer`` called ``name``, with ``params`` in place of its own."""
    made = copy.copy(layer)
    made.name = name
    keep(made, ["name"])
    made.params = dict(params)
    return made


def unify(nodes: Iterable[Node]) -> None:
    """Give each array one parameter, and so one name, in the net: its first use's.

    A layer may share a parameter of a nested net since before the nesting.
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
    """Return the sources of each input node; without sources, inputs of the outer net."""
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
