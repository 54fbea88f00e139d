"""Build a net's graph from layers, and cut parts of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from singanet.base.arguments import name_trouble
from singanet.base.described import CheckedType, checked_call
from singanet.base.elsewhere import expect_no_words
from singanet.base.kinds import snake_case
from singanet.base.terms import OPEN
from singanet.base.tracebacks import entry_point
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    GraphError,
    ShapeError,
    UnknownNameError,
    brief,
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
    """Raise `ArgumentError` if a net's name cannot be a part of parameter names."""
    good = isinstance(name, str) and "/" not in name and not name_trouble(name)
    if name is not None and not good:
        raise ArgumentError(
            "FeedForwardNet, argument name",
            expected="a non-empty string of printable characters without '/', or None",
            received=brief(name)[:80],
            advice="name it like a layer, for example 'features'",
        )


def two_ways() -> ArgumentError:
    """Return the error for a net from both a list and symbols."""
    return ArgumentError(
        "FeedForwardNet",
        expected="a list of layers, or inputs= and outputs=",
        received="both",
        advice="omit one",
    )


def closed(net: str | None, nested: bool) -> CallOrderError:
    """Return the error for a layer added to a net that is nested, or has no shape yet."""
    if nested:
        return CallOrderError(
            f"net {net!r}",
            expected="layers to be added before it is nested in another net",
            received="a layer added afterwards",
            advice="add it to the outer net",
        )
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape before layers are added to a list",
        received="a first layer without input_shape",
        advice="put all layers into the list, or call net.build(shape) first",
    )


def chosen_already(where: str) -> CallOrderError:
    """Return the error for new parameters in a net whose parameters an Executor has selected."""
    return CallOrderError(
        where,
        expected=OPEN,
        received="an Executor's net, whose programs train the parameters at its construction",
        advice="call it on a net with a name, and draw the Executor's programs with that",
    )


def nested_already(where: str, net: str | None) -> CallOrderError:
    """Return the error for new parameters in a net that is nested."""
    return CallOrderError(
        where,
        expected="a net that is not nested, since an outer net copies its layers",
        received=f"the nested net {net!r}",
        advice="call it before the net is nested",
    )


def no_shape(net: str | None, first: str) -> CallOrderError:
    """Return the error for a list of layers without the input shape that it needs."""
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape",
        received=f"a list whose first layer, {first!r}, has none",
        advice=f"pass input_shape to {first!r}, or call net.build(sample_shape), as net.fit does",
    )


def other_ports(inputs: Iterable[str], counts: Mapping[str, int]) -> GraphError:
    """Return the error for inputs that the graph lacks, or outputs that a layer lacks."""
    return GraphError(
        "net, inputs and outputs",
        expected=f"the inputs {one_of(inputs)}, and outputs below {dict(counts)}"[:300],
        received="others",
        advice="write the configuration with net.to_config()",
    )


def other_shapes(net: str | None, expected: str, received: Any) -> ShapeError:
    """Return the error for input shapes that differ from the net's."""
    return ShapeError(
        "net" if net is None else f"net {net!r}",
        expected=f"input sample shapes {expected}, without the batch axis",
        received=str(received),
        advice="use another net for other shapes",
    )


def checked_shapes(net: str | None, given: Any) -> Shapes:
    """Return ``given`` as one sample shape, or a list of several. Errors: `ShapeError`."""
    try:
        return normal_shapes(given)
    except (TypeError, ValueError):
        raise other_shapes(net, "as tuples of ints", repr(given)[:80]) from None


def unread_mask(name: str) -> GraphError:
    """Return the error for an output ``name`` with a mask that a loss would ignore."""
    return GraphError(
        f"net, output {name!r}",
        expected="outputs without a mask, or with their masks among the outputs",
        received="an output with a mask",
        advice="draw the net with symbols: outputs=[y, y.mask] and MultiLoss(masks=...), or"
        " y.mask = None if targets mark the steps that count",
    )


def masked_by_add(name: str) -> ArgumentError:
    """Return the error for a layer ``name`` that starts a mask in a net built by `add`."""
    return ArgumentError(
        f"net.add of layer {name!r}",
        expected="a layer without a mask: masks need a list of layers, or symbols",
        received="a layer that creates a mask",
        advice="write FeedForwardNet([...]), or draw the net with symbols",
    )


ONLY_INPUT = "input"
"""The name of the input before the layers of a list."""

_Part = TypeVar("_Part", bound="Layer | GraphBuilder | Symbol")
One: TypeAlias = "Layer | GraphBuilder | str"
Src: TypeAlias = "One | tuple[One, int] | Sequence[One | tuple[One, int]] | None"


class GraphBuilder(metaclass=CheckedType):
    """A graph of layers and nested nets, and the methods that extend it.

    A nested net needs a ``name``: its layers and their parameters are called ``name/...`` in the
    outer net. ``pending`` are the layers of a list without an input shape yet.
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

    @entry_point
    def __getitem__(self, name: str) -> Layer:
        """Return the layer ``name``; a nested net's layers are called ``net/layer``."""
        self._expect_layers([name], "net")
        return self._graph.layer(name)

    def __contains__(self, name: object) -> bool:
        return name in self._graph.nodes

    @property
    def nested(self) -> Mapping[str, Any]:
        """The nested nets, by the name of each use."""
        return dict(self._nests.nets)

    def nodes(self) -> list[Node]:
        """Return the uses of layers, in the order of adding."""
        self.ordered()
        return list(self._graph.nodes.values())

    def ordered(self) -> list[Node]:
        """Return the uses of layers in topological order.

        Errors: `CallOrderError` if the net is empty, `GraphError` from the sort.
        """
        return self._sort()[1]

    def ports(self) -> Ports:
        """Return inputs and outputs: in the symbols' order, otherwise in topological order."""
        return self._ports if self._ports is not None else self._sort()[2]

    def _sort(self) -> tuple[int, list[Node], Ports]:
        """Return the graph's version, its nodes in order and its ports; computed once a version."""
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
        """Inputs and outputs in the symbols' order, if there are symbols."""
        return self._ports

    def _declare(self, inputs: list[str], outputs: list[tuple[str, int]]) -> None:
        """Set inputs and outputs in their order. Errors: `GraphError` if the graph has others."""
        nodes = {node.name: node for node in self.nodes()}
        self._expect_layers([*inputs, *(name for name, _ in outputs)], "net, inputs and outputs")
        starts = [node.name for node in nodes.values() if not node.sources]
        counts = {name: len(nodes[name].output_shapes()) for name, _ in outputs}
        if sorted(inputs) != sorted(starts) or any(not 0 <= k < counts[n] for n, k in outputs):
            raise other_ports(starts, counts)
        self._ports = Ports(list(inputs), list(outputs))

    @property
    def frozen_before(self) -> list[str]:
        """The nodes passed to `freeze`."""
        return self._graph.frozen_before()

    @checked_call
    def _params_of(self, name: str) -> list[Param]:
        """Return the parameters of the layer or nested net ``name``, without filling them."""
        nodes = self._graph.nodes
        inner = nodes.values() if name in self._nests.nets else ()
        use = [nodes[self._graph.first(name)], *(n for n in inner if n.within == name)]
        return [param for node in use for param in node.layer.params.values()]

    def _use_of(self, layer: Layer | GraphBuilder | str) -> list[str]:
        """Return the nodes where arrays enter ``layer``: itself, or a nested net's inputs."""
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
                    received=brief(name),
                    advice=did_you_mean(name, self._graph.nodes, "check net.summary()"),
                )

    def start(
        self,
        parts: Sequence[Any] | None,
        inputs: Symbol | Sequence[Symbol],
        outputs: Symbol | Sequence[Symbol],
    ) -> None:
        """Add the constructor's arguments: a chain of ``parts``, or the graph of symbols."""
        outputs, inputs = _symbols("outputs", outputs), _symbols("inputs", inputs)
        if parts is not None and (inputs or outputs):
            raise two_ways()
        with self._whole():
            if parts is not None:
                self._add_list(parts)
            elif inputs or outputs:
                self._add_symbols(inputs, outputs)

    def _refit(self, where: str) -> None:
        """Record that layers have new parameters, such as factors next to their weights.

        Errors: `CallOrderError` if the net is nested, since the outer net has copies of these
        layers, or if an Executor has selected parameters for training.
        """
        if self._params_chosen:
            raise chosen_already(where)
        self._expect_outermost(where)
        self._graph._refit()

    def _expect_outermost(self, where: str) -> None:
        """Raise `CallOrderError` if the net is nested: the outer net has copies of these layers."""
        if self._fixed:
            raise nested_already(where, self.name)

    # -- adding -----------------------------------------------------------------------------

    @checked_call
    def add(self, layer: _Part, src: Src = None) -> _Part:
        """Add a layer, or a net with a name, and return it.

        A nested net's layers become layers of this net, called ``net/layer``. Errors: `GraphError`
        if a name is used twice, `ShapeError` if the layer refuses the shape; the net does not
        change then.

        Args:
            layer: The layer or net; the first may be an `Input`.
            src: The source of its input: a layer or nested net of this net, or its name, also of a
                layer that is added later; ``(layer, index)`` for one of several outputs; a list of
                these for several inputs; ``[]`` for another input of the net. None for the last
                addition.
        """
        part: Any = layer if self._graph.nodes else _layer_of_input(layer)
        _check_part("net.add", part)
        if getattr(part, "_mask_layer", None) or part.traits.begins_mask:
            raise masked_by_add(str(part.name))
        with self._naming([part]):
            self._add_node(part, sources_of(part, src, self._last), str(part.name))
        return layer

    @contextmanager
    def _naming(self, parts: Sequence[Layer | GraphBuilder]) -> Iterator[None]:
        """Name the unnamed layers among ``parts`` after their classes; undo on errors.

        They are numbered in this net: dense, dense_1, ..., without names in use.
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
        """Add a use of ``layer`` as ``name``, with ``(name, output index)`` sources.

        `add`, lists and symbols all call this; a layer may have several uses.
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
        """Add the node ``name``: of ``layer``, or of its activation, after a node of the layer."""
        activation = None if layer.activation is None else activation_of(layer)
        if activation is None:
            return self._graph.add(layer, sources, name)
        first = f"{name}.{snake_case(type(layer).__name__)}"
        with self._graph.whole():
            self._graph.add(layer, sources, first, whole=name)
            return self._graph.add(activation, [(first, 0)], name)

    def _add_list(self, parts: Sequence[Any]) -> None:
        """Add ``parts`` as a chain, now or when `build` provides the first one's shape."""
        parts = [*map(_layer_of_input, parts[:1]), *parts[1:]]
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
        """Return the sample shape(s) of the outputs for inputs of ``in_shapes``.

        A list of layers without a shape is set up for the one sample shape in ``in_shapes``, after
        an input called ``input``; `fit` does so from its data. Errors: `ShapeError` if the net was
        set up for other shapes.
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
        """A transaction: an error inside restores the graph."""
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
        """Refuse further layers, since another net has copies of these."""
        self._fixed = True

    def _choose_params(self) -> None:
        """Refuse new parameters: an Executor has selected among the present ones."""
        self._params_chosen = True

    # -- symbols ----------------------------------------------------------------------------

    @entry_point
    def __call__(self, *inputs: Any, **words: Any) -> Symbol:
        """Apply the net, which needs a name, to symbols, as if it were a layer."""
        expect_no_words("net(...)", words)
        if not any(isinstance(each, Symbol) for each in inputs):
            raise ArgumentError(
                "net(...)",
                expected="symbols, as a layer is called",
                received=f"a {type(inputs[0]).__name__}" if inputs else "nothing",
                advice="net.predict(x) gives probabilities, net.forward(False, x) the layers' "
                "outputs",
            )
        _check_nesting(None, self)
        made = apply(self, inputs)
        self.fix()
        return made

    def _add_symbols(self, inputs: list[Symbol], outputs: list[Symbol]) -> None:
        """Add the graph of ``outputs``, which become the net's outputs, in this order.

        Errors: `GraphError` if an output has a mask that is not among the outputs.
        """
        ports = {(symbol.call.born, symbol.index) for symbol in outputs}
        for symbol in outputs:
            if symbol.mask is not None and (symbol.mask.call.born, symbol.mask.index) not in ports:
                raise unread_mask(str(symbol.call.layer.name))
        outputs = [*_each_whole(outputs)]
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


def _each_whole(outputs: Iterable[Symbol]) -> Iterator[Symbol]:
    """Yield ``outputs``; if a call has more of them, those behind a `Dummy` layer for each.

    All outputs of a layer are one value of the net, a list.
    """
    for call, some in groupby(outputs, attrgetter("call")):
        parts = [*some]
        if [part.index for part in parts] == [*range(call.outputs)]:
            yield from parts
            continue
        for part in parts:
            name = Unnamed(f"{call.layer.name}_{part.index}")
            yield apply(Dummy(name), (part,), inner=True)


def port_of(net: GraphBuilder, symbol: Symbol) -> tuple[str, int] | None:
    """Return the node and output of ``net`` for ``symbol``; None if it is not of this net."""
    name = net._drawn.get(symbol.call.born)
    return None if name is None else (name, symbol.index)


def _layer_of_input(part: Any) -> Any:
    """Return the layer of an `Input`, with which a list may begin; else ``part`` itself."""
    return part.call.layer if isinstance(part, Symbol) and not part.call.inputs else part


def _check_part(where: str, part: Any) -> None:
    """Raise `ArgumentError` unless ``part`` is a layer or a net with a name."""
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
    """Raise an error if ``net`` has no name, or is or contains ``outer``."""
    if net.name is None:
        raise ArgumentError(
            "a net nested in another",
            expected="a name, the prefix of its layers and parameters",
            received="none",
            advice="build it with FeedForwardNet(..., name='features'), or assign net.name",
        )
    if outer is not None and (net is outer or _contains(net, outer)):
        raise GraphError(
            f"net {net.name!r}",
            expected="nets that do not contain themselves",
            received="a net nested in itself"
            if net is outer
            else f"a net that contains the net {outer.name!r} it is added to",
            advice="call it on symbols to use it several times in another net",
        )


def _contains(net: GraphBuilder, other: GraphBuilder) -> bool:
    inside = net.nested.values()
    return any(each is other or _contains(each, other) for each in inside)


def _needs_shape(part: Layer | GraphBuilder) -> bool:
    if isinstance(part, Layer):
        return part.input_shape is None
    return bool(part.pending)


def in_shapes_of(node: Node) -> list[Any]:
    """Return the sample shapes of all inputs of ``node``, always as a list."""
    shapes = node.layer.in_shapes
    return shapes if isinstance(shapes, list) else [shapes]


def sources_of(
    layer: Layer | GraphBuilder, src: Src, last: str | None
) -> list[tuple[str, int | None]]:
    """Return ``src`` as names with output indices; None means ``last``, if there is one."""
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


_WHERE = "FeedForwardNet"


def _symbols(what: str, given: Any) -> list[Symbol]:
    """Return ``given`` as a list. Errors: `ArgumentError` for anything but symbols."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in listed:
        if not isinstance(each, Symbol):
            raise ArgumentError(
                f"{_WHERE}, argument {what}",
                expected="a symbol, or a list of symbols",
                received=brief(each),
                advice="write FeedForwardNet(inputs=x, outputs=y) of x = Input(shape)",
            )
    return listed


def told_apart(first: Any, loss: Any) -> tuple[Sequence[Any] | None, Loss | None]:
    """Return the layers and the loss; ``first`` is either of them or None.

    Errors: `ArgumentError` if it is neither, such as a layer outside a list, or if there are two
    losses.
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
    # A user's own loss need not be a subclass of `Loss`.
    alone = isinstance(given, (Layer, GraphBuilder))
    if isinstance(given, Symbol):
        raise ArgumentError(
            _WHERE,
            expected=expected,
            received="a Symbol",
            advice="write FeedForwardNet(inputs=x, outputs=y)",
        )
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
    """Return ``metric``. Errors: `ArgumentError` if it cannot measure, or is a loss."""
    good = hasattr(metric, "evaluate") and not hasattr(metric, "backward")
    symbols = metric if isinstance(metric, (list, tuple)) else [metric]
    if metric is not None and (isinstance(metric, type) or not good):
        raise ArgumentError(
            f"{_WHERE}, argument metric",
            expected="a metric such as Accuracy(), or None",
            received=_kind(metric),
            advice="write FeedForwardNet(inputs=x, outputs=y)"
            if any(isinstance(each, Symbol) for each in symbols)
            else "pass losses by name: FeedForwardNet([...], loss=..., metric=...)",
        )
    found: Metric | None = metric
    return found


def _kind(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
