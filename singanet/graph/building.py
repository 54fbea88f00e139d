"""A net's graph, built from layers and cut into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from singanet.base.arguments import name_trouble
from singanet.base.described import CheckedType, checked_call
from singanet.base.kinds import snake_case
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    GraphError,
    ShapeError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.graph.nodes import Graph, Nests, Node, Ports, unify
from singanet.layers.activations import activation_of
from singanet.layers.layer import Layer, normal_shapes
from singanet.layers.shapes import Dummy
from singanet.layers.symbol import Symbol, Unnamed, apply, calls_between, stage, travelled
from singanet.params.param import Param
from singanet.types import Shapes, Traits

if TYPE_CHECKING:
    from singanet.loss.loss import Loss
    from singanet.metric.metric import Metric


def check_name(name: Any) -> None:
    """Errors: a net's name that is no string, or would not do as a part of a parameter's."""
    good = isinstance(name, str) and "/" not in name and not name_trouble(name)
    if name is not None and not good:
        raise ArgumentError(
            "FeedForwardNet, argument name",
            expected="a non-empty string of printable characters without '/', or None",
            received=repr(name)[:80],
            advice="name it as a layer, for example 'features'",
        )


def two_ways() -> ArgumentError:
    """The error for a net given as a list and as symbols."""
    return ArgumentError(
        "FeedForwardNet",
        expected="a list of layers, or inputs= and outputs=",
        received="both",
        advice="leave one of them out",
    )


def closed(net: str | None, nested: bool) -> CallOrderError:
    """The error for a layer added to a net that takes no more: it is nested, or is to be built."""
    if nested:
        return CallOrderError(
            f"net {net!r}",
            expected="layers to be added before it is nested in another net",
            received="one afterwards",
            advice="add it to the net around it",
        )
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape before layers are added to those of a list",
        received="a list whose first layer has none",
        advice="put all layers into the list, or call net.build(shape) first",
    )


def chosen_already(where: str) -> CallOrderError:
    """The error for a net whose layers are to have other parameters, and that is an Executor's."""
    return CallOrderError(
        where,
        expected="a net whose parameters nobody has chosen among",
        received="that of an Executor, whose programs train those that they were made with",
        advice="call it on a net with a name, and draw the Executor's programs with that",
    )


def nested_already(where: str, net: str | None) -> CallOrderError:
    """The error for a net whose layers are to have other parameters, and that is nested."""
    return CallOrderError(
        where,
        expected="a net that is not nested in another, whose layers are copies",
        received=f"the net {net!r}, which is",
        advice="call it before the net is nested",
    )


def no_shape(net: str | None, first: str) -> CallOrderError:
    """The error for a list of layers without an input shape, where one is needed."""
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape",
        received=f"a list whose first layer, {first!r}, has none",
        advice=f"pass input_shape to {first!r}, call net.build(shape), or fit the net first",
    )


def other_ports(inputs: Iterable[str], counts: Mapping[str, int]) -> GraphError:
    """The error for inputs that are not those of the graph, or outputs that a layer lacks."""
    return GraphError(
        "net, inputs and outputs",
        expected=f"the inputs {one_of(inputs)}, and outputs below {dict(counts)}"[:300],
        received="others",
        advice="write the configuration with net.to_config()",
    )


def other_shapes(net: str | None, expected: str, received: Any) -> ShapeError:
    """The error for input shapes other than those a net was set up for."""
    return ShapeError(
        "net" if net is None else f"net {net!r}",
        expected=f"input sample shapes {expected}, without the batch axis",
        received=str(received),
        advice="use another net for other shapes",
    )


def checked_shapes(net: str | None, given: Any) -> Shapes:
    """``given`` as one sample shape, or a list of several. Errors: anything else."""
    try:
        return normal_shapes(given)
    except (TypeError, ValueError):
        raise other_shapes(net, "as tuples of ints", repr(given)[:80]) from None


def unread_mask(name: str) -> GraphError:
    """The error for an output ``name`` whose steps a loss would take for whole."""
    return GraphError(
        f"net, output {name!r}",
        expected="outputs without a mask, or with their masks among the outputs",
        received="an output that has a mask",
        advice="draw the net with symbols: outputs=[y, y.mask] and MultiLoss(masks=...), or"
        " y.mask = None where targets say which steps count",
    )


def masked_by_add(name: str) -> ArgumentError:
    """The error for a layer ``name`` that begins a mask in a net built by `add`."""
    return ArgumentError(
        f"net.add of layer {name!r}",
        expected="a layer without a mask, which goes along in lists and on symbols alone",
        received="one that begins a mask",
        advice="write FeedForwardNet([...]), or draw the net with symbols",
    )


ONLY_INPUT = "input"
"""The name of the input that is put before the layers of a list."""

_Part = TypeVar("_Part", bound="Layer | GraphBuilder")
One: TypeAlias = "Layer | GraphBuilder | str"
Src: TypeAlias = "One | tuple[One, int] | Sequence[One | tuple[One, int]] | None"


class GraphBuilder(metaclass=CheckedType):
    """A graph of layers and of nets nested in it, and the ways to add to it.

    ``name`` is needed where the net is nested in another: its layers and their parameters are
    called ``name/...`` there. ``pending`` are layers of a list that wait for an input shape.
    """

    traits = Traits()

    def __init__(self, name: str | None) -> None:
        check_name(name)
        self.name = name
        self.pending: list[Layer | GraphBuilder] = []
        self._graph = Graph()
        self._nests = Nests(self._graph)
        self._ports: Ports | None = None
        self._order: tuple[int, list[Node], Ports] = (-1, [], Ports([], []))
        self._last: str | None = None
        self._fixed = False
        self._params_chosen = False
        self._nested_here: list[GraphBuilder] = []
        self._drawn: dict[int, str] = {}

    def __getitem__(self, name: str) -> Layer:
        """The layer called ``name``; those of a nested net are called ``net/layer``."""
        self._expect_layers([name], "net")
        return self._graph.layer(name)

    def __contains__(self, name: object) -> bool:
        return name in self._graph.nodes

    @property
    def nested(self) -> Mapping[str, Any]:
        """The nested nets, by the name of each use."""
        return dict(self._nests.nets)

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
    def _declared_ports(self) -> Ports | None:
        """Inputs and outputs in the order in which symbols gave them, if they did."""
        return self._ports

    def _declare(self, inputs: list[str], outputs: list[tuple[str, int]]) -> None:
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

    @checked_call
    def _params_of(self, name: str) -> list[Param]:
        """The parameters of the layer or nested net added as ``name``; none is filled by this."""
        nodes = self._graph.nodes
        inner = nodes.values() if name in self._nests.nets else ()
        use = [nodes[self._graph.first(name)], *(n for n in inner if n.within == name)]
        return [param for node in use for param in node.layer.params.values()]

    def _use_of(self, layer: Layer | GraphBuilder | str) -> list[str]:
        """The nodes through which arrays enter ``layer``: itself, or the inputs of a nested net."""
        name = layer if isinstance(layer, str) else str(layer.name)
        self._expect_layers([name], "net")
        nested = name in self._nests.nets
        return self._nests.entries(name) if nested else [self._graph.first(name)]

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

    def start(
        self,
        parts: Sequence[Any] | None,
        inputs: Symbol | Sequence[Symbol],
        outputs: Symbol | Sequence[Symbol],
    ) -> None:
        """Add what the constructor was given: a chain of ``parts``, or what symbols draw."""
        outputs = [outputs] if isinstance(outputs, Symbol) else list(outputs)
        inputs = [inputs] if isinstance(inputs, Symbol) else list(inputs)
        if parts is not None and (inputs or outputs):
            raise two_ways()
        with self._whole():
            if parts is not None:
                self._add_list(parts)
            elif inputs or outputs:
                self._add_symbols(inputs, outputs)

    def _refit(self, where: str) -> None:
        """Count that layers have other parameters than before, as pairs beside their weights.

        Errors: a net that is nested in another, whose layers are copies of these; one of whose
        parameters an Executor has chosen those that its programs train.
        """
        if self._params_chosen:
            raise chosen_already(where)
        self._expect_outermost(where)
        self._graph._refit()

    def _expect_outermost(self, where: str) -> None:
        """Errors: a net that is nested in another, whose layers are copies of these."""
        if self._fixed:
            raise nested_already(where, self.name)

    # -- adding -----------------------------------------------------------------------------

    @checked_call
    def add(self, layer: _Part, src: Src = None) -> _Part:
        """Add ``layer``, or a net with a name, behind ``src`` and return it.

        ``src`` is None for what was added before (an input, if there is none), a layer or nested
        net, a name, ``(layer, index)`` for one of several outputs, a list of these, or ``[]`` for
        another input of the net. A name may be that of a layer added later. A nested net's layers
        become layers of this one, called ``net/layer``. Errors: a name used twice, a shape the
        layer refuses; the net is then as it was.
        """
        _check_part("net.add", layer)
        if getattr(layer, "_mask_layer", None) or layer.traits.begins_mask:
            raise masked_by_add(str(layer.name))
        with self._naming([layer]):
            self._add_node(layer, sources_of(layer, src, self._last), str(layer.name))
        return layer

    @contextmanager
    def _naming(self, parts: Sequence[Layer | GraphBuilder]) -> Iterator[None]:
        """Name the layers among ``parts`` that have no name, after their classes; undo on errors.

        They are counted in this net: dense, dense_1, ... without the names that others have.
        """
        taken = {str(part.name) for part in parts if not isinstance(part.name, Unnamed)}
        unnamed = [p for p in parts if isinstance(p, Layer) and isinstance(p.name, Unnamed)]
        stems = [layer.name for layer in unnamed]
        counts: dict[str, int] = {}
        for layer, stem in zip(unnamed, stems, strict=True):
            name, count = str(stem), counts.get(stem, 0)
            while name in taken or name in self._graph.nodes:
                count += 1
                name = f"{stem}_{count}"
            counts[stem] = count
            taken.add(name)
            layer._take_name(name)
        try:
            yield
        except BaseException:
            for layer, stem in zip(unnamed, stems, strict=True):
                layer._take_name(stem)
            raise

    def _add_node(
        self, layer: Layer | GraphBuilder, sources: list[tuple[str, int | None]], name: str
    ) -> None:
        """Add a use of ``layer`` as ``name`` behind ``(name, output index)`` sources.

        `add`, lists and symbols come down to this; a layer may be used under several names.
        """
        if not isinstance(layer, Layer):
            _check_nesting(self, layer)
        if self._fixed or self.pending:
            raise closed(self.name, self._fixed)
        if isinstance(layer, Layer):
            self._last = self._add_layer(layer, sources, name).name
        else:
            self._last = self._nests.add(layer, sources, name).name
            if not layer._fixed:
                layer.fix()
                self._nested_here.append(layer)
        self._ports = None

    def _add_layer(self, layer: Layer, sources: list[tuple[str, int | None]], name: str) -> Node:
        """The node ``name``: of ``layer``, or of its activation, behind a node of the layer."""
        activation = None if layer.activation is None else activation_of(layer)
        if activation is None:
            return self._graph.add(layer, sources, name)
        first = f"{name}.{snake_case(type(layer).__name__)}"
        with self._graph.whole():
            self._graph.add(layer, sources, first, whole=name)
            return self._graph.add(activation, [(first, 0)], name)

    def _add_list(self, parts: Sequence[Any]) -> None:
        """Add ``parts`` as a chain, now or when `build` gives the shape that the first lacks."""
        for part in parts:
            _check_part("FeedForwardNet, argument layers", part)
        with self._naming(parts):
            if parts and _needs_shape(parts[0]):
                self.pending = list(parts)
            else:
                self._chain(parts)

    def _chain(self, parts: Iterable[Layer | GraphBuilder]) -> None:
        mask: tuple[str, int | None] | None = None
        for part in parts:
            own = part.traits.begins_mask
            begins: Any = part if own else getattr(part, "_mask_layer", None)
            if begins is not None and self._last is None:
                shape = part.input_shape if isinstance(part, Layer) else None
                self._add_node(Dummy(ONLY_INPUT, input_shape=shape), [], ONLY_INPUT)
            sources: list[tuple[str, int | None]] = []
            if self._last is not None:
                sources = [(self._last, None)]
            if not own:
                shapes = self._graph.shapes_from(sources) or [()]
                read, mask = travelled(part, shapes, [mask])
                given = sources if read is None else [*sources, read]
                self._add_node(part, given, str(part.name))
            if begins is not None:
                last = self._last if begins is not part else sources[0][0]
                self._add_node(begins, sources, begins.name)
                self._last, mask = last, (begins.name, 0)
        if mask is not None:
            raise unread_mask(str(self._last))

    @checked_call
    def build(self, in_shapes: Any) -> Shapes:
        """The sample shape(s) that come out where ``in_shapes`` come in.

        A list of layers whose first has no shape is set up for the one sample shape given here,
        behind an input called ``input``; `fit` does so by its data. Errors: shapes other than those
        the net was set up for.
        """
        shapes = checked_shapes(self.name, in_shapes)
        if self.pending:
            with self._whole():
                parts, self.pending = self.pending, []
                if isinstance(shapes, list):
                    raise other_shapes(self.name, "one sample shape", shapes)
                self._add_node(Dummy(ONLY_INPUT, input_shape=shapes), [], ONLY_INPUT)
                self._chain(parts)
        nodes = {node.name: node for node in self.nodes()}
        ports = self.ports()
        expected = [shape for name in ports.inputs for shape in in_shapes_of(nodes[name])]
        if (shapes if isinstance(shapes, list) else [shapes]) != expected:
            raise other_shapes(self.name, str(expected)[1:-1], shapes)
        found = [nodes[name].output_shapes()[index] for name, index in ports.outputs]
        return found[0] if len(found) == 1 else found

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A transaction: after an error inside, the graph is as it was before."""
        pending, last, nets = self.pending, self._last, dict(self._nests.nets)
        nested = len(self._nested_here)
        try:
            with self._graph.whole():
                yield
        except BaseException:
            self.pending, self._last, self._nests.nets = pending, last, nets
            for net in self._nested_here[nested:]:
                net._fixed = False
            del self._nested_here[nested:]
            raise

    def fix(self) -> None:
        """Take no more layers, since another net has copies of those that are here."""
        self._fixed = True

    def _choose_params(self) -> None:
        """Let no layer get other parameters: somebody has chosen among those that there are."""
        self._params_chosen = True

    # -- symbols ----------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Symbol:
        """Apply the net, which needs a name, to symbols, as if it were a layer."""
        if not any(isinstance(each, Symbol) for each in inputs):
            raise ArgumentError(
                "net(...)",
                expected="symbols, as a layer is called",
                received=f"a {type(inputs[0]).__name__}" if inputs else "nothing",
                advice="net.predict(x) gives probabilities, net.forward(False, x) what the layers "
                "make",
            )
        _check_nesting(None, self)
        made = apply(self, inputs)
        self.fix()
        return made

    def _add_symbols(self, inputs: list[Symbol], outputs: list[Symbol]) -> None:
        """Add all that ``outputs`` depend on; these become the outputs, in this order.

        Errors: one has a mask, which is not among them.
        """
        ports = {(symbol.call.born, symbol.index) for symbol in outputs}
        for symbol in outputs:
            if symbol.mask and (symbol.mask.call.born, symbol.mask.index) not in ports:
                raise unread_mask(str(symbol.call.layer.name))
        names: dict[int, str] = {}
        uses: dict[int, int] = {}
        calls = calls_between(inputs, outputs)
        parts: dict[int, Any] = {id(call.layer): call.layer for call in calls}
        with self._naming(list(parts.values())):
            for number, drawn in groupby(calls, attrgetter("stage")):
                with stage(number):
                    for call in drawn:
                        count = uses[id(call.layer)] = uses.get(id(call.layer), 0) + 1
                        name = str(call.layer.name) if count == 1 else f"{call.layer.name}@{count}"
                        names[call.born] = name
                        sources: list[tuple[str, int | None]] = [
                            (names[symbol.call.born], symbol.index) for symbol in call.inputs
                        ]
                        self._add_node(parts[id(call.layer)], sources, name)
        self._drawn = names
        self._ports = Ports(
            [names[symbol.call.born] for symbol in inputs],
            [(names[symbol.call.born], symbol.index) for symbol in outputs],
        )


def port_of(net: GraphBuilder, symbol: Symbol) -> tuple[str, int] | None:
    """The node and output of ``net`` that ``symbol`` stands for; None if it is not of this net."""
    name = net._drawn.get(symbol.call.born)
    return None if name is None else (name, symbol.index)


def _check_part(where: str, part: Any) -> None:
    """Errors: something that is neither a layer nor a net with a name."""
    if isinstance(part, GraphBuilder):
        _check_nesting(None, part)
    elif not isinstance(part, Layer):
        raise ArgumentError(
            where,
            expected="a Layer, or a net with a name",
            received=f"the class {part.__name__}"
            if isinstance(part, type)
            else type(part).__name__,
            advice="pass an instance such as Dense('fc', 10)",
        )


def _check_nesting(outer: GraphBuilder | None, net: GraphBuilder) -> None:
    """Errors: a ``net`` without a name, or one that is or holds ``outer``."""
    if net.name is None:
        raise ArgumentError(
            "a net nested in another",
            expected="a name, after which its layers and parameters are called",
            received="none",
            advice="build it with FeedForwardNet(..., name='features')",
        )
    if outer is not None and (net is outer or _holds(net, outer)):
        raise GraphError(
            f"net {net.name!r}",
            expected="nets that do not hold themselves",
            received="a net nested in itself"
            if net is outer
            else f"one that holds the net {outer.name!r} it is added to",
            advice="call it on symbols to use it several times in another net",
        )


def _holds(net: GraphBuilder, other: GraphBuilder) -> bool:
    inside = net.nested.values()
    return any(each is other or _holds(each, other) for each in inside)


def _needs_shape(part: Layer | GraphBuilder) -> bool:
    if isinstance(part, Layer):
        return part.input_shape is None
    return bool(part.pending)


def in_shapes_of(node: Node) -> list[Any]:
    """The sample shapes of all inputs of ``node``, as a list also when there is one."""
    shapes = node.layer.in_shapes
    return shapes if isinstance(shapes, list) else [shapes]


def sources_of(
    layer: Layer | GraphBuilder, src: Src, last: str | None
) -> list[tuple[str, int | None]]:
    """``src`` as names with output indices; None stands for ``last``, if there is one."""
    if src is None:
        return [] if last is None else [(last, None)]
    many = isinstance(src, list) or (isinstance(src, tuple) and not _names_output(src))
    parts: Any = src if many else [src]
    return [_source(layer, part) for part in parts]


def _names_output(src: tuple[Any, ...]) -> bool:
    """Whether ``src`` is one ``(layer, index)`` rather than several sources."""
    return len(src) == 2 and isinstance(src[1], int)


def _source(layer: Layer | GraphBuilder, part: Any) -> tuple[str, int | None]:

    index: int | None = None
    if isinstance(part, tuple) and _names_output(part):
        part, index = part
    if isinstance(part, (Layer, GraphBuilder)):
        part = part.name
    if not isinstance(part, str):
        raise ArgumentError(
            f"net.add of layer {layer.name!r}, argument src",
            expected="a layer, a name, (layer, index), or a list of these",
            received=type(part).__name__,
            advice="pass src=[] for another input of the net",
        )
    return part, index


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
    _expect_whole(needed)
    inputs = net.ports().inputs
    # Inputs first, as lists feed them: among layers that are ready the first added comes first.
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
    """The node itself, or the nested net or the layer with an activation that it is part of."""
    return (node.whole or node.name) if node.within is None else node.within


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


def _expect_whole(needed: Iterable[Node]) -> None:
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
        if node.whole is not None and node.whole not in {other.name for other in needed}:
            raise ArgumentError(
                f"net.upto, layer {node.name!r}",
                expected="layers with their activation",
                received="a layer without it",
                advice=f"cut behind {node.whole!r}, or add an Activation as a layer of its own",
            )
        if any(not param.storage.in_memory for param in node.layer.params.values()):
            raise CallOrderError(
                "net.upto",
                expected="a net in memory, of which another may have a part",
                received=f"{node.name!r} in a folder or on other processes",
                advice="call net.onload(), or cut it before it is offloaded or shared out",
            )


_WHERE = "FeedForwardNet"


def told_apart(first: Any, loss: Any) -> tuple[Sequence[Any] | None, Loss | None]:
    """The layers and the loss, where ``first`` is either of them or None.

    Errors: something else, as a layer outside of a list; two losses.
    """
    if isinstance(first, (list, tuple)):
        return first, None if loss is None else _checked_loss(loss, "a loss")
    if first is None:
        return None, None if loss is None else _checked_loss(loss, "a loss")
    found = _checked_loss(first, "a list of layers, or a loss, as the first argument")
    if loss is not None:
        raise ArgumentError(
            _WHERE, expected="one loss", received="two", advice="pass loss= or the first argument"
        )
    return None, found


def _checked_loss(given: Any, expected: str) -> Loss:
    # A user's own loss need not be a subclass of ours.
    alone = isinstance(given, (Layer, GraphBuilder))
    if (
        alone
        or isinstance(given, type)
        or not (hasattr(given, "forward") and hasattr(given, "backward"))
    ):
        raise ArgumentError(
            _WHERE,
            expected=expected,
            received=_kind(given),
            advice="put it into a list: FeedForwardNet([...])"
            if alone
            else "write FeedForwardNet([Dense(...), ...], loss=SoftmaxCrossEntropy())",
        )
    found: Loss = given
    return found


def checked_metric(metric: Any) -> Metric | None:
    """``metric`` itself. Errors: something that cannot measure, or a loss in its place."""
    good = hasattr(metric, "evaluate") and not hasattr(metric, "backward")
    if metric is not None and (isinstance(metric, type) or not good):
        raise ArgumentError(
            f"{_WHERE}, argument metric",
            expected="a metric such as Accuracy(), or None",
            received=_kind(metric),
            advice="pass losses by name: FeedForwardNet([...], loss=..., metric=...)",
        )
    found: Metric | None = metric
    return found


def _kind(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
