"""How a net is built: layer by layer, from a list, from symbols, and from other nets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from singanet.building_errors import (
    check_nesting,
    check_part,
    checked_shapes,
    closed,
    other_shapes,
    two_ways,
)
from singanet.layers.dummy import Dummy
from singanet.layers.layer import Layer
from singanet.nesting import Ports
from singanet.sources import Src, sources_of
from singanet.structure import Structure, in_shapes_of
from singanet.symbol import Symbol, apply, calls_between
from singanet.types import Shapes

if TYPE_CHECKING:
    pass

_Part = TypeVar("_Part", bound="Layer | Buildable")


class Buildable(Structure):
    """The ways to add layers to a net; with a name it may itself be added to another."""

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self._last: str | None = None
        self._fixed = False
        self._nested_here: list[Buildable] = []

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

    # -- adding -----------------------------------------------------------------------------

    def add(self, layer: _Part, src: Src = None) -> _Part:
        """Add ``layer``, or a net with a name, behind ``src`` and return it.

        ``src`` is None for what was added before (an input, if there is none), a layer or nested
        net, a name, ``(layer, index)`` for one of several outputs, a list of these, or ``[]`` for
        another input of the net. A name may be that of a layer added later. A nested net's layers
        become layers of this one, called ``net/layer``. Errors: a name used twice, a shape the
        layer refuses; the net is then as it was.
        """
        check_part("net.add", layer)
        self.add_node(layer, sources_of(layer, src, self._last), str(layer.name))
        return layer

    def add_node(
        self, layer: Layer | Buildable, sources: list[tuple[str, int | None]], name: str
    ) -> None:
        """Add a use of ``layer`` as ``name`` behind ``(name, output index)`` sources.

        `add`, lists and symbols come down to this; a layer may be used under several names.
        """
        if not isinstance(layer, Layer):
            check_nesting(self, layer)
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
            check_part("FeedForwardNet, argument layers", part)
        if parts and _needs_shape(parts[0]):
            self.pending = list(parts)
        else:
            self._chain(parts)

    def _chain(self, parts: Iterable[Layer | Buildable]) -> None:
        for part in parts:
            self.add_node(part, [] if self._last is None else [(self._last, None)], str(part.name))

    def build(self, in_shapes: Any) -> Shapes:
        """The sample shape(s) that come out where ``in_shapes`` come in.

        A list of layers whose first has no shape is set up for the one sample shape given here,
        behind an input called ``input``. Errors: shapes other than those the net was set up for.
        """
        shapes = checked_shapes(self.name, in_shapes)
        if self.pending:
            with self._whole():
                parts, self.pending = self.pending, []
                if isinstance(shapes, list):
                    raise other_shapes(self.name, "one sample shape", shapes)
                self.add_node(Dummy("input", input_sample_shape=shapes), [], "input")
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
        """All that happens inside, or after an error nothing of it."""
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

    # -- symbols ----------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Any:
        """Apply the net, which needs a name, to symbols, as if it were a layer."""
        check_nesting(None, self)
        made = apply(self, inputs)
        self.fix()
        return made

    def _add_symbols(self, inputs: list[Symbol], outputs: list[Symbol]) -> None:
        """Add all that ``outputs`` depend on; these become the outputs, in this order."""
        names: dict[int, str] = {}
        uses: dict[int, int] = {}
        for call in calls_between(inputs, outputs):
            count = uses[id(call.layer)] = uses.get(id(call.layer), 0) + 1
            name = str(call.layer.name) if count == 1 else f"{call.layer.name}@{count}"
            names[call.born] = name
            sources: list[tuple[str, int | None]] = [
                (names[symbol.call.born], symbol.index) for symbol in call.inputs
            ]
            self.add_node(call.layer, sources, name)
        self._ports = Ports(
            [names[symbol.call.born] for symbol in inputs],
            [(names[symbol.call.born], symbol.index) for symbol in outputs],
        )


def _needs_shape(part: Layer | Buildable) -> bool:
    if isinstance(part, Layer):
        return part.input_sample_shape is None
    return bool(part.pending)
