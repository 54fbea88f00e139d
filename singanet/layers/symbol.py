"""Symbols: what layers return when they are called to draw a net, as in Keras."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, GraphError
from singanet.types import Shape, Shapes

__all__ = ["Symbol", "apply", "calls_between", "source", "stage"]

_creation = itertools.count()
_stage: ContextVar[int | None] = ContextVar("stage", default=None)


@contextmanager
def stage(number: int | None) -> Iterator[None]:
    """Layers that are drawn or added within the block are computed by this stage of a pipeline.

    Stages count from 0; within a block in a block the inner one says it. Errors: no such number.
    """
    checked = None if number is None else checked_count("parallel.stage", "number", number, 0)
    token = _stage.set(checked)
    try:
        yield
    finally:
        _stage.reset(token)


def drawn_stage() -> int | None:
    """The stage of the block around, if there is one."""
    return _stage.get()


class Applicable(Protocol):
    """What can be called on symbols: a layer, or a net with a name."""

    @property
    def name(self) -> str | None: ...

    def build(self, in_shapes: Any) -> Shapes: ...


class Call:
    """One application of a layer or net to symbols; ``born`` orders calls by creation."""

    __slots__ = ("born", "inputs", "layer", "stage")

    def __init__(self, layer: Applicable, inputs: tuple[Symbol, ...]) -> None:
        self.layer = layer
        self.inputs = inputs
        self.born = next(_creation)
        self.stage = _stage.get()


class Symbol:
    """One output of a call: a sample shape without values."""

    __slots__ = ("call", "index", "shape")

    def __init__(self, call: Call, index: int, shape: Shape) -> None:
        self.call = call
        self.index = index
        self.shape = shape

    def __repr__(self) -> str:
        return f"Symbol({self.call.layer.name!r}, index={self.index}, shape={self.shape})"


def source(layer: Applicable, shape: Shape) -> Symbol:
    """The symbol of an input layer, which is built for ``shape`` already."""
    return Symbol(Call(layer, ()), 0, shape)


def apply(layer: Applicable, inputs: tuple[Any, ...]) -> Symbol | tuple[Symbol, ...]:
    """The symbol(s) that come out when ``layer`` is called on symbols.

    Several inputs may stand as arguments or in one list. A layer called twice shares its
    parameters. Errors: anything but symbols, or shapes that the layer refuses.
    """
    if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = tuple(inputs[0])
    for given in inputs:
        if not isinstance(given, Symbol):
            raise ArgumentError(
                f"layer {layer.name!r}",
                expected="symbols, as Input or another layer returns",
                received=type(given).__name__,
                advice="start from Input(name, shape); for arrays call net.forward",
            )
    if not inputs:
        raise ArgumentError(
            f"layer {layer.name!r}",
            expected="at least one symbol",
            received="none",
            advice="start from Input(name, shape)",
        )
    if len(inputs) == 1 and not _takes_integers(layer) and _is_of_integers(inputs[0]):
        raise ArgumentError(
            f"layer {layer.name!r}",
            expected="floats to compute with",
            received=f"what comes of {inputs[0].call.layer.name!r}, whole numbers",
            advice="leave dtype out of that Input, or put an Embedding between",
        )
    shapes = [symbol.shape for symbol in inputs]
    out_shapes = layer.build(shapes[0] if len(shapes) == 1 else shapes)
    call = Call(layer, inputs)
    if isinstance(out_shapes, list):
        return tuple(Symbol(call, index, shape) for index, shape in enumerate(out_shapes))
    return Symbol(call, 0, out_shapes)


def calls_between(inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> list[Call]:
    """All calls that ``outputs`` depend on, in order of creation.

    Errors: an `Input` that the outputs need and ``inputs`` leaves out, or one they do not need.
    """
    found: dict[int, Call] = {}
    stack = [symbol.call for symbol in outputs]
    while stack:
        call = stack.pop()
        if call.born not in found:
            found[call.born] = call
            stack += [symbol.call for symbol in call.inputs]
    needed = {str(call.layer.name) for call in found.values() if not call.inputs}
    given = {str(symbol.call.layer.name) for symbol in inputs}
    if needed != given:
        raise GraphError(
            "net",
            expected=f"inputs={_listed(needed)}, on which the outputs depend",
            received=f"inputs={_listed(given)}",
            advice="name exactly the Input symbols that the outputs are computed from",
        )
    return [found[born] for born in sorted(found)]


def _takes_integers(layer: Any) -> bool:
    """Whether indices may come to it: to a net, or a layer that says so or only moves elements."""
    return getattr(layer, "integer_input", True) or layer.moves_only or layer.stops_gradient


def _is_of_integers(symbol: Symbol) -> bool:
    """Whether it is an input with a type of whole numbers, perhaps moved about."""
    call = symbol.call
    while call.inputs and getattr(call.layer, "moves_only", False):
        call = call.inputs[0].call
    return not call.inputs and getattr(call.layer, "integer_input", False)


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"
