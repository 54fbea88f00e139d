"""How a net is built: layer by layer, from a list, from symbols, and from other nets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from singanet.base.calls import checked_call
from singanet.base.described import CheckedType
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    GraphError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.graph.nesting import Nests, Ports, unify
from singanet.graph.nodes import Graph, Node
from singanet.graph.refusals import (
    check_name,
    checked_shapes,
    chosen_already,
    closed,
    masked_by_add,
    nested_already,
    no_shape,
    other_ports,
    other_shapes,
    two_ways,
    unread_mask,
)
from singanet.layers.dummy import Dummy
from singanet.layers.layer import Layer, Traits
from singanet.layers.symbol import Symbol, apply, calls_between, stage, travelled
from singanet.params.param import Param
from singanet.types import Shapes

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
        return self._graph.nodes[name].layer

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

    @checked_call
    def params_of(self, name: str) -> list[Param]:
        """The parameters of the layer or nested net added as ``name``; none is filled by this."""
        nodes = self._graph.nodes
        inner = nodes.values() if name in self._nests.nets else ()
        use = [nodes[name], *(n for n in inner if n.within == name)]
        return [param for node in use for param in node.layer.params.values()]

    def use_of(self, layer: Layer | GraphBuilder | str) -> list[str]:
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

    def refit(self, where: str) -> None:
        """Count that layers have other parameters than before, as pairs beside their weights.

        Errors: a net that is nested in another, whose layers are copies of these; one of whose
        parameters an Executor has chosen those that its programs train.
        """
        if self._params_chosen:
            raise chosen_already(where)
        self.expect_outermost(where)
        self._graph.refit()

    def expect_outermost(self, where: str) -> None:
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
        if getattr(layer, "mask_layer", None) or layer.traits.begins_mask:
            raise masked_by_add(str(layer.name))
        self.add_node(layer, sources_of(layer, src, self._last), str(layer.name))
        return layer

    def add_node(
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
            self._last = self._graph.add(layer, sources, name).name
        else:
            self._last = self._nests.add(layer, sources, name).name
            if not layer._fixed:
                layer.fix()
                self._nested_here.append(layer)
        self._ports = None

    def _add_list(self, parts: Sequence[Any]) -> None:
        """Add ``parts`` as a chain, now or when `build` gives the shape that the first lacks."""
        for part in parts:
            _check_part("FeedForwardNet, argument layers", part)
        if parts and _needs_shape(parts[0]):
            self.pending = list(parts)
        else:
            self._chain(parts)

    def _chain(self, parts: Iterable[Layer | GraphBuilder]) -> None:
        mask: tuple[str, int | None] | None = None
        for part in parts:
            own = part.traits.begins_mask
            begins: Any = part if own else getattr(part, "mask_layer", None)
            if begins is not None and self._last is None:
                shape = part.input_sample_shape if isinstance(part, Layer) else None
                self.add_node(Dummy(ONLY_INPUT, input_sample_shape=shape), [], ONLY_INPUT)
            sources: list[tuple[str, int | None]] = []
            if self._last is not None:
                sources = [(self._last, None)]
            if not own:
                shapes = self._graph.shapes_from(sources) or [()]
                read, mask = travelled(part, shapes, [mask])
                given = sources if read is None else [*sources, read]
                self.add_node(part, given, str(part.name))
            if begins is not None:
                last = self._last if begins is not part else sources[0][0]
                self.add_node(begins, sources, begins.name)
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
                self.add_node(Dummy(ONLY_INPUT, input_sample_shape=shapes), [], ONLY_INPUT)
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

    def choose_params(self) -> None:
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
        uses: dict[Any, int] = {}
        for call in calls_between(inputs, outputs):
            # Losses are called after their class: the second of one is another layer.
            who = call.layer.name if getattr(call.layer, "named", True) is False else id(call.layer)
            count = uses[who] = uses.get(who, 0) + 1
            name = str(call.layer.name) if count == 1 else f"{call.layer.name}@{count}"
            names[call.born] = name
            sources: list[tuple[str, int | None]] = [
                (names[symbol.call.born], symbol.index) for symbol in call.inputs
            ]
            part: Any = call.layer
            with stage(call.stage):
                self.add_node(part, sources, name)
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
        return part.input_sample_shape is None
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
