"""Symbols: the results of calling layers to define a net, as in Keras."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from singanet.base.arguments import checked_count
from singanet.base.elsewhere import missing_attribute
from singanet.base.tracebacks import entry_point
from singanet.errors import ArgumentError, GraphError
from singanet.types import Shape, Shapes, Traits

__all__ = [
    "BATCH",
    "Symbol",
    "Unnamed",
    "apply",
    "calls_between",
    "expect_axes_said",
    "expect_samples",
    "shape_text",
    "source",
    "stage",
    "travelled",
]

T = TypeVar("T")


class Unnamed(str):
    """The name of a layer without one, until the net that it joins names it."""

    __slots__ = ()


BATCH = -2
"""The extent of a batch in `Symbol.full`; -3 is that of two batches, and so on; -1 is any."""

_creation = itertools.count()
_stage: ContextVar[int | None] = ContextVar("stage", default=None)


@contextmanager
def stage(number: int | None) -> Iterator[None]:
    """Assign layers that are called or added within the block to a stage of a pipeline.

    The inner one of two nested blocks applies. Errors: a number that is not a stage.

    Args:
        number: Number of the stage, from 0, or None for no stage.
    """
    checked = None if number is None else checked_count("parallel.stage", "number", number, 0)
    token = _stage.set(checked)
    try:
        yield
    finally:
        _stage.reset(token)


drawn_stage = _stage.get
"""The stage of the current block, or None."""


class Applicable(Protocol):
    """A layer, or a net with a name, which can be called on symbols."""

    @property
    def name(self) -> str | None:
        """The prefix of the names of its parameters."""

    @property
    def traits(self) -> Traits:
        """The declared traits; a net declares none."""

    def build(self, in_shapes: Any) -> Shapes:
        """Return the sample shapes of the outputs."""


class Application:
    """One application of a layer or net to symbols; ``born`` orders calls by creation."""

    __slots__ = ("born", "inputs", "layer", "outputs", "stage")

    def __init__(self, layer: Applicable, inputs: tuple[Symbol, ...], outputs: int) -> None:
        self.layer = layer
        self.inputs = inputs
        self.outputs = outputs
        self.born = next(_creation)
        self.stage = _stage.get()


class Symbol:
    """One output of a call: a sample shape without values.

    ``a + b``, ``a - b``, ``a * b`` and ``a / b`` of symbols, numbers and arrays, ``-a``, ``a **
    2``, ``a @ b``, ``a[:, 0]`` and ``a[:, [2, 0]]`` create layers, which are named plus, minus,
    times, over, power, product, part and picked; the second of a name is plus_1. Each of several
    lists indexes its own axis. ``a > b`` gives booleans (less, at_most, greater, at_least), with
    which ``(a > 0).where(a, b)`` chooses; ``==`` compares the identity of two symbols.
    `singanet.functional` has more functions.

    ``mask`` is a symbol (T,), 0 at padded steps, or None; it may be assigned. Layers that preserve
    the steps pass it to their outputs, and layers that can read masks read it.
    """

    __slots__ = ("call", "full", "index", "kind", "mask", "shape")

    def __init__(self, call: Application, index: int, shape: Shape) -> None:
        self.call = call
        self.index = index
        self.shape = shape
        self.full: Shape = (BATCH, *shape)
        """The shape of the array with the batch axis, as `singanet.functional` counts axes.

        Without a batch axis in front, layers see one sample of this shape.
        """
        self.kind = _kind_of(call)
        """ "integers" or "floats", "any" where it is not known before the net is whole."""
        self.mask: Symbol | None = None

    if not TYPE_CHECKING:  # else type checkers accept any attribute
        __getattr__ = missing_attribute

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Any:
        """Return the symbol of an operator after an array. Errors: other functions of NumPy's."""
        sign = _SIGNS.get(ufunc.__name__)
        if sign is None or method != "__call__" or given:
            raise _of_numpy(ufunc, self)
        if sign == "@":
            return _functional().matmul(*inputs)
        return _computed(sign, *inputs)

    def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
        """Errors: `ArgumentError` always, as NumPy's functions are for arrays."""
        raise _of_numpy(function, self)

    def __add__(self, other: Any) -> Symbol:
        return _computed("+", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return _computed("+", self, other)

    def __sub__(self, other: Any) -> Symbol:
        return _computed("-", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return _computed("-", other, self)

    def __neg__(self) -> Symbol:
        return _computed("*", self, -1.0, "minus")

    def __mul__(self, other: Any) -> Symbol:
        return _computed("*", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return _computed("*", self, other)

    def __truediv__(self, other: Any) -> Symbol:
        return _computed("/", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return _computed("/", other, self)

    def __pow__(self, exponent: Any) -> Symbol:
        return _computed("**", self, exponent)

    def __rpow__(self, base: Any) -> Symbol:
        return _computed("**", base, self)

    def __abs__(self) -> Symbol:
        return _functional().abs(self)

    def __matmul__(self, other: Any) -> Symbol:
        return _functional().matmul(self, other)

    def __rmatmul__(self, other: Any) -> Symbol:
        return _functional().matmul(other, self)

    def __lt__(self, other: Any) -> Symbol:
        return _computed("<", self, other)

    def __le__(self, other: Any) -> Symbol:
        return _computed("<=", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return _computed(">", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return _computed(">=", self, other)

    @entry_point
    def __bool__(self) -> bool:
        raise GraphError(
            "a symbol as a condition",
            expected="a value that is known when the net is drawn",
            received=repr(self),
            advice="write (a > 0).where(b, c), which chooses for each element",
        )

    def where(self, a: Any, b: Any) -> Symbol:
        """Return ``a`` if this is true, otherwise ``b``; one of them may be a number."""
        return _functional().where(self, a, b)

    def astype(self, dtype: str) -> Symbol:
        """Return the symbol as "float", the net's type, as "bool" or as an integer type."""
        return _functional().cast(self, dtype)

    def __getitem__(self, index: Any) -> Symbol:
        return _functional().part(self, index)

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Symbol]:
            """Symbols of several outputs are a tuple, and type checkers see this."""

    else:
        # Without this, Python would iterate over a[0], a[1] and so on.
        __iter__ = None

    def __repr__(self) -> str:
        return f"Symbol({self.call.layer.name!r}, index={self.index}, shape={self.shape})"


_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "matmul": "@",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
"""The operators by the names of NumPy's functions."""


def _of_numpy(function: Any, symbol: Symbol) -> ArgumentError:
    name = function.__name__
    there = hasattr(_functional(), name)
    return ArgumentError(
        f"np.{name}",
        expected="arrays",
        received=repr(symbol),
        advice=f"call singanet.functional.{name}"
        if there
        else "compute symbols by operators, singanet.functional, or a layer of your own",
    )


def _functional() -> Any:
    # Imported by name, since its layers import this module.
    return import_module("singanet.functional")


def _computed(how: str, a: Any, b: Any, *name: str) -> Symbol:
    made: Symbol = _functional().computed(how, a, b, *name)
    return made


def source(layer: Applicable, shape: Shape) -> Symbol:
    """Return the symbol of an input layer, which is already built for ``shape``."""
    return Symbol(Application(layer, (), 1), 0, shape)


def apply(layer: Applicable, inputs: tuple[Any, ...], inner: bool = False) -> Symbol:
    """Return the symbol that `Layer.__call__` returns.

    Layers that `singanet.functional` draws are ``inner``: they read symbols of any axes.
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
        if not inner:
            expect_samples(f"layer {layer.name!r}", given)
    if not inputs:
        raise ArgumentError(
            f"layer {layer.name!r}",
            expected="at least one symbol",
            received="none",
            advice="start from Input(name, shape)",
        )
    if layer.traits.begins_mask:
        return _masked(inputs[0], _made(layer, inputs))
    shapes = [symbol.shape for symbol in inputs]
    read, kept = travelled(layer, shapes, [symbol.mask for symbol in inputs])
    made = _made(layer, inputs if read is None else (*inputs, read))
    first = made[0] if isinstance(made, tuple) else made
    if kept is not None:
        _expect_steps(layer, first.shape, kept.shape)
        first.mask = kept
    beginning = getattr(layer, "_mask_layer", None)
    if beginning is not None:
        first.mask = _made(beginning, inputs)
    return made


def expect_samples(where: str, symbol: Symbol) -> None:
    """Errors: `GraphError` for a symbol whose only batch axis is not the first."""
    full = symbol.full
    if full[:1] > (BATCH,) or not full or any(size <= BATCH for size in full[1:]):
        raise GraphError(
            where,
            expected="a symbol whose first axis is the batch, and no other",
            received=f"outputs of {symbol.call.layer.name!r}, of shape {shape_text(full)}",
            advice="layers compute sample by sample: use singanet.functional, and reduce the other"
            " axes",
        )


def shape_text(full: Shape) -> str:
    """Return the shape ``full`` of a `Symbol` in words, such as (batch, 3)."""
    named = {BATCH: "batch", -1: "any"}
    sizes = (named.get(n, f"{-1 - n}·batch" if n < BATCH else str(n)) for n in full)
    return f"({', '.join(sizes)})"


def _made(layer: Applicable, inputs: tuple[Symbol, ...]) -> Any:
    _expect_kinds(layer, inputs)
    asks = getattr(layer, "_asks_axes", None)
    if asks is not None and asks(inputs[0].shape):
        expect_axes_said(layer, _upwards(inputs[0].call))
    fresh: Any = layer if getattr(layer, "in_shapes", ()) is None else None
    shapes = [symbol.shape for symbol in inputs]
    out_shapes = layer.build(shapes[0] if len(shapes) == 1 else shapes)
    if fresh is not None:
        # The kind of an input may depend on its shape.
        try:
            _expect_kinds(layer, inputs)
        except ArgumentError:
            fresh._unbuild()
            raise
    shapes = out_shapes if isinstance(out_shapes, list) else [out_shapes]
    call = Application(layer, inputs, len(shapes))
    made = [Symbol(call, k, shape) for k, shape in enumerate(shapes)]
    batch = _batch_of(layer, inputs)
    for symbol in made:
        symbol.full = (batch, *symbol.full[1:])
    return tuple(made) if isinstance(out_shapes, list) else made[0]


def _batch_of(layer: Applicable, inputs: tuple[Symbol, ...]) -> int:
    """Return the extent of the outputs' batch axis in `Symbol.full`."""
    batches = [symbol.full[0] for symbol in inputs if symbol.full and symbol.full[0] <= BATCH]
    if layer.traits.samples == "stacked":
        return -1 - sum(-1 - batch for batch in batches)
    return batches[0] if batches else BATCH


def _upwards(call: Application) -> Iterator[Any]:
    """Iterate over the layers from ``call`` towards the inputs, along first inputs."""
    yield call.layer
    while call.inputs:
        call = call.inputs[0].call
        yield call.layer


def expect_axes_said(layer: Any, above: Iterable[Any]) -> None:
    """Check that the axis of ``layer`` is known if its input has steps.

    ``above`` are the layers from its input upwards; layers that preserve a mask preserve the axis
    of steps. Errors: `ArgumentError` if the axis is ambiguous.
    """
    for source in above:
        traits = source.traits
        if traits.gives_steps:
            raise ArgumentError(
                f"layer {layer.name!r}, argument data_format",
                expected=f"'channels_last' or 'channels_first' behind {source.name!r},"
                " whose outputs are (steps, features)",
                received="None, which slides along the last axis",
                advice="pass data_format='channels_last' to slide along the steps",
            )
        if traits.masks != "keeps":
            return


def _masked(x: Symbol, mask: Symbol) -> Symbol:
    """Return ``x`` with another ``mask``."""
    made = Symbol(x.call, x.index, x.shape)
    made.mask = mask
    return made


def travelled(
    layer: Any, shapes: Sequence[Shape], masks: Sequence[T | None]
) -> tuple[T | None, T | None]:
    """Return the mask that ``layer`` reads as its last input, and the mask of its output.

    ``shapes`` and ``masks`` belong to its inputs in the call. Errors: `GraphError` for a layer that
    would use padded steps as others, or for inputs with several masks.
    """
    there = [mask for mask in masks if mask is not None]
    if not there:
        return None, None
    use, reads = layer.traits.masks, getattr(layer, "_reads_mask", None)
    at = None if reads is None else reads(shapes)
    if not use and at is not None and masks[at] is None:
        # Masked queries stay masked: steps of queries never mix.
        return None, masks[0]
    if not use:
        raise GraphError(
            f"layer {layer.name!r}",
            expected="inputs without a mask, since it would mix padded steps with others",
            received="an input with a mask",
            advice="remove it: x.mask = None; return the last states of a recurrent layer, or"
            " pool the steps by Reduce(..., axes=1)",
        )
    if at is not None:
        return masks[at], masks[0] if use == "keeps" else None
    if any(mask is not there[0] for mask in there):
        raise GraphError(
            f"layer {layer.name!r}",
            expected="inputs with one mask",
            received=f"{len(there)} masks",
            advice="choose one: set mask = None for the other inputs",
        )
    return None, there[0] if use == "keeps" else None


def _expect_steps(layer: Any, shape: Shape, mask: Shape) -> None:
    """Errors: `GraphError` for an output of ``shape`` that does not have the steps of ``mask``."""
    if shape[:1] != mask:
        raise GraphError(
            f"layer {layer.name!r}",
            expected=f"an output with the steps of its mask, {mask}, as first axis",
            received=f"sample shape {shape}",
            advice="remove the mask of the input: x.mask = None",
        )


def calls_between(inputs: Sequence[Symbol] | None, outputs: Sequence[Symbol]) -> list[Application]:
    """Return all calls that ``outputs`` depend on, in order of creation.

    ``inputs`` are all inputs, or None for any. Errors: an `Input` that the outputs need and
    ``inputs`` omits, or an unneeded `Input`.
    """
    found: dict[int, Application] = {}
    stack = [symbol.call for symbol in outputs]
    while stack:
        call = stack.pop()
        if call.born not in found:
            found[call.born] = call
            stack += [symbol.call for symbol in call.inputs]
    needed = {call.born: str(call.layer.name) for call in found.values() if not call.inputs}
    given = needed
    if inputs is not None:
        given = {symbol.call.born: str(symbol.call.layer.name) for symbol in inputs}
    if needed.keys() != given.keys():
        same = sorted(needed.values()) == sorted(given.values())
        raise GraphError(
            "net",
            expected=f"inputs={_listed(needed.values())}, on which the outputs depend",
            received=f"inputs={_listed(given.values())}"
            + (", other symbols of the same names" if same else ""),
            advice="call Input once, and pass its symbol to the layers and as inputs"
            if same
            else "pass exactly the Input symbols that the outputs depend on",
        )
    return [found[born] for born in sorted(found)]


def _kind_of(call: Application) -> str:
    layer: Any = call.layer
    if layer.traits.gives_integers:
        return "integers"
    if not hasattr(layer, "_input_kind") or not call.inputs:
        # For a net, or an input without a type.
        return "any"
    kinds = _kinds_moved(layer, call.inputs) if layer.traits.moves_only else {"floats"}
    return next((kind for kind in ("integers", "floats") if kind in kinds), "any")


def _kinds_moved(layer: Any, inputs: Sequence[Symbol]) -> set[str]:
    return {symbol.kind for k, symbol in enumerate(inputs) if layer._input_kind(k) == "any"}


def _expect_kinds(layer: Any, inputs: Sequence[Symbol]) -> None:
    """Errors: integers for a layer that reads floats, or floats for a layer that reads indices."""
    moved = _kinds_moved(layer, inputs) if layer.traits.moves_only else set()
    for k, symbol in enumerate(inputs):
        wanted = layer._input_kind(k) if hasattr(layer, "_input_kind") else "any"
        if wanted == "any" and "floats" in moved:
            wanted = "floats"
        if {wanted, symbol.kind} == {"floats", "integers"}:
            floats, name = wanted == "floats", symbol.call.layer.name
            raise ArgumentError(
                f"layer {layer.name!r}" + (f", input {k}" if len(inputs) > 1 else ""),
                expected="floats to compute with" if floats else "whole numbers or booleans",
                received=f"outputs of {name!r}, {'whole numbers' if floats else 'floats'}",
                advice="put .astype('float') or an Embedding between"
                if floats
                else "start from Input(name, shape, dtype='int64'), or put .astype('int64')",
            )


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"
