"""A use of an ONNX operator and the sheet of nodes that a codec reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

from singanet import layers
from singanet.base.arguments import Budget, name_trouble
from singanet.layers.joins import Combine
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.params.param import Param
from singanet.saving.codecs.onnx.values import (
    BATCHES,
    FileNode,
    Known,
    RefusedError,
    Tensor,
    Value,
    alike,
)
from singanet.types import Array

_NO_LETTERS = re.compile(r"[^\w.\-]+")


class Names:
    """Names of layers, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}
        """By the name wanted, the number of the last one: all before it are taken."""

    def take(self, wanted: str) -> str:
        """``wanted`` as a name that no other layer has."""
        plain = _NO_LETTERS.sub(".", wanted).strip(".")[:120] or "it"
        plain = "it" if name_trouble(plain) else plain
        count = self._last.get(plain, 1)
        name = plain if count == 1 else f"{plain}_{count}"
        while name in self._taken:
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        self._last[plain] = count
        return name

    def free(self, names: Iterable[str]) -> None:
        """Let others have the names."""
        freed = self._taken.intersection(names)
        self._taken -= freed
        for name in freed:
            self._last.pop(name, None)
            self._last.pop(name.rpartition("_")[0], None)


@dataclass
class Sheet:
    """The state of drawing a graph, for converters; arrays go by their names in the graph."""

    budget: Budget
    values: dict[str, Value] = field(default_factory=dict)
    makers: dict[str, FileNode] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    """How many nodes and outputs read each array."""
    names: Names = field(default_factory=Names)
    drawn_by: dict[str, list[str]] = field(default_factory=dict)
    """The layers drawn for a node, by its first output."""
    fills: list[tuple[Param, Array]] = field(default_factory=list)
    """The values of parameters, which have shapes alone until the net is made."""
    frozen: list[Layer] = field(default_factory=list)
    fixed: list[Param] = field(default_factory=list)
    """Parameters that the file does not have, and that are not trained."""
    written_out: frozenset[str] = frozenset()
    """Outputs of nodes whose operators stay as they are, as inner values are read elsewhere too."""
    wholes: list[tuple[str, list[Symbol]]] = field(default_factory=list)
    """Parts that were drawn as one layer: the output, and the symbols in its place."""
    inputs: list[Symbol] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The inputs that have an axis of any extent."""
    casts: dict[int, Tensor] = field(default_factory=dict)
    """Tensors that became floats, by their symbols before."""
    fixed_batch: int | None = None
    """The batch size that the file was exported for, None if it takes any."""

    def read(self, names: Iterable[str]) -> None:
        """Count one more reader of each array."""
        for name in filter(None, names):
            self.readers[name] = self.readers.get(name, 0) + 1

    def forget(self, outputs: Iterable[str]) -> None:
        """Free the names of layers drawn for nodes that a pattern stands for."""
        for output in outputs:
            self.names.free(self.drawn_by.pop(output, ()))

    def torn(self, ends: Sequence[Symbol]) -> frozenset[str]:
        """The outputs of `wholes` of which ``ends`` need what the layer stands for, too."""
        needed: set[int] = set()
        stack = [symbol.call for symbol in ends]
        while stack:
            call = stack.pop()
            if call.born not in needed:
                needed.add(call.born)
                stack += [symbol.call for symbol in call.inputs]
        return frozenset(
            output
            for output, parts in self.wholes
            if any(part.call.born in needed for part in parts)
        )

    def single_reader(self, name: str) -> bool:
        """Whether one node alone reads the array, which is no output."""
        return self.readers.get(name, 0) == 1


Converter: TypeAlias = "Callable[[Use], Value | Sequence[Value | None] | None]"
_OF_WEIGHT = re.compile(
    r"(.+?)(?:(?:/l0)?[./](?:weight|kernel|W|gamma|scale|output_weight)|_weight)$"
)
"""The layer in the name of an array: of attention's projections the last has the name of all."""


@dataclass
class Use:
    """One node with the values that it reads: what a converter sees."""

    sheet: Sheet
    node: FileNode
    drawn: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = self.sheet.values
        self.values: list[Value | None] = [
            values[name] if name else None for name in self.node.inputs
        ]

    @property
    def opset(self) -> int:
        """The version of the operators."""
        return self.node.opset

    def attribute(self, name: str, usual: Any = None) -> Any:
        """The attribute, or ``usual``."""
        return self.node.attributes.get(name, usual)

    def value(self, k: int) -> Value | None:
        """The input ``k``, None if it was left out."""
        return self.values[k] if k < len(self.values) else None

    def tensor(self, k: int = 0) -> Tensor:
        """The input ``k``, a part of the net, as floats; what is known becomes a `Weight`."""
        value = self.value(k)
        if isinstance(value, Tensor):
            return self.floats(value)
        if value is None:
            raise RefusedError(f"an input number {k + 1}", "none")
        other = next((v for v in self.values if isinstance(v, Tensor)), None)
        if other is None:
            raise RefusedError("an input of the net", "constants alone")
        return self.weight(value, other)

    def array(self, k: int) -> Array | None:
        """The input ``k``, a constant, or None if it was left out."""
        value = self.value(k)
        if isinstance(value, Tensor):
            raise RefusedError(
                f"a constant as input {k + 1}", "what depends on an input of the net"
            )
        return None if value is None else value.array

    def needed(self, k: int) -> Array:
        """The input ``k``, a constant."""
        array = self.array(k)
        if array is None:
            raise RefusedError(f"a constant as input {k + 1}", "none")
        return array

    def setting(self, name: str, k: int, usual: Any = None) -> Any:
        """A setting: an attribute of older operators, the input ``k`` of newer ones."""
        if name in self.node.attributes:
            return self.node.attributes[name]
        array = self.array(k)
        return usual if array is None else array.tolist()

    def name(self, k: int | None = None) -> str:
        """A name for the layer: after the array that is input ``k``, or the node, or its kind."""
        value = None if k is None else self.value(k)
        wanted = ""
        if isinstance(value, Known) and value.name:
            found = _OF_WEIGHT.match(value.name)
            wanted = found[1] if found else ""
        wanted = wanted or self.node.name.strip("/") or self.node.op.lower()
        name = self.sheet.names.take(wanted)
        self.drawn.append(name)
        return name

    def draw(self, layer: Layer, *inputs: Tensor, **arrays: Array | None) -> Any:
        """The symbol or symbols of ``layer`` on the inputs; ``arrays`` fill its parameters."""
        if isinstance(layer, Combine):
            _expect_any(inputs)
        found = layer(*(each.symbol for each in inputs))
        self.fill(layer, {k.replace("__", "/"): v for k, v in arrays.items()})
        return found

    def fill(self, layer: Layer, arrays: Mapping[str, Array | None]) -> None:
        """Note the values of parameters, which `load` assigns once the net is made."""
        for suffix, array in arrays.items():
            if array is None:
                continue
            param = layer.params[suffix]
            if prod(array.shape) != prod(param.shape):
                raise RefusedError(f"{suffix} of shape {param.shape}", f"{array.shape}")
            self.sheet.fills.append((param, array.reshape(param.shape)))

    def make(self, kind: Any, *inputs: Tensor, dtype: Any = None, **arguments: Any) -> Tensor:
        """A layer of one output, without parameters, of inputs with the samples in one place."""
        symbol = self.draw(kind(self.name(), **arguments), *inputs)
        return inputs[0].like(symbol, dtype)

    def floats(self, value: Tensor) -> Tensor:
        """``value`` as the floats that layers compute with."""
        if not value.whole:
            return value
        casts = self.sheet.casts
        key = id(value.symbol)
        if key not in casts:
            name = self.sheet.names.take(f"{value.symbol.call.layer.name}.cast")
            casts[key] = replace(value, symbol=layers.Cast(name)(value.symbol), whole=False)
        return casts[key]

    def reshaped(self, value: Tensor, sample: Sequence[int]) -> Symbol:
        """The symbol with another sample shape of as many elements."""
        found = value.symbol
        while isinstance(found.call.layer, layers.Reshape):
            # Of several in a row the last counts, and none that leads back.
            (found,) = found.call.inputs
        if tuple(sample) == found.shape:
            return found
        if tuple(sample) == value.sample:
            return value.symbol
        name = self.sheet.names.take(f"{self.node.name.strip('/') or self.node.op.lower()}.shape")
        self.drawn.append(name)
        made: Symbol = layers.Reshape(name, tuple(sample))(found)
        return made

    def raised(self, value: Tensor, rank: int) -> Tensor:
        """``value`` with axes of extent 1 in front, so that it has ``rank`` of them."""
        more = rank - value.rank
        if more <= 0:
            return value
        axis = None if value.axis is None else value.axis + more
        return replace(value, symbol=self.reshaped(value, (1,) * more + value.sample), axis=axis)

    def weight(self, value: Known, other: Tensor, rank: int = 0) -> Tensor:
        """``value`` as a part of the net that can meet ``other``, both raised to ``rank``.

        An array of a file, of several numbers, is trained; others stay as they are.
        """
        rank = max(rank, other.rank, value.at[0].ndim)
        axis = None if other.axis is None else other.axis + rank - other.rank
        array = self._of_a_sample(value, rank, axis)
        if axis is not None:
            array = array.reshape(
                (*array.shape[:axis], *(1 for _ in other.folds), *array.shape[axis:])
            )
        made = self.constant(value, array, axis)
        return replace(made, before=other.before, after=other.after)

    def constant(self, value: Known, array: Array, axis: int | None) -> Tensor:
        """``array``, the same for every sample, as a part of the net."""
        base = re.sub(r"[./](weight|bias)$", "", value.name) or self.node.name.strip("/")
        name = self.sheet.names.take(base or "constant")
        self.drawn.append(name)
        layer = layers.Weight(name, array.shape)
        symbol = layer(self.sheet.inputs[0])
        self.fill(layer, {"weight": array})
        if not value.name or value.dtype.kind != "f" or array.size < 2:
            self.sheet.frozen.append(layer)
        return Tensor(symbol, value.dtype, axis)

    def _of_a_sample(self, value: Known, rank: int, axis: int | None) -> Array:
        """The array of one sample, without the axis of the samples, along which all are equal."""
        if axis is None:
            return value.array.reshape((1,) * (rank - value.array.ndim) + value.array.shape)
        arrays = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in value.at]
        for array, batch in zip(arrays, BATCHES, strict=True):
            if array.shape[axis] not in (1, batch, self.sheet.fixed_batch) or not alike(
                array, axis
            ):
                raise RefusedError(
                    "constants that are the same for every sample", f"shape {array.shape}"
                )
        first, second = (array.take(0, axis) for array in arrays)
        return Known.of(first, second).array

    def together(self, *positions: int, keep: bool = False) -> list[Tensor]:
        """The inputs as parts of the net of one rank, with the samples in one place.

        They become floats, unless ``keep`` says to leave them.
        """
        values = [self.value(k) for k in (positions or range(len(self.values)))]
        parts = [v for v in values if isinstance(v, Tensor)]
        tensors = parts if keep else [self.floats(v) for v in parts]
        ranks = [v.at[0].ndim for v in values if isinstance(v, Known)]
        rank = max([t.rank for t in tensors] + ranks)
        raised = iter([self.raised(t, rank) for t in tensors])
        found: list[Tensor] = []
        first = self.raised(tensors[0], rank)
        for value in values:
            if value is None:
                raise RefusedError("an array as every input", "one left out")
            found.append(next(raised) if isinstance(value, Tensor) else self.weight(value, first))
        places = {(t.axis, t.before, t.after) for t in found}
        if len(places) > 1:
            raise RefusedError(
                "samples along one axis of all inputs", f"{sorted(map(str, places))}"
            )
        return found

    def before(self, value_name: str, *ops: str) -> FileNode | None:
        """The node that makes the array, if it is one of ``ops`` and has no other reader."""
        node = self.sheet.makers.get(value_name)
        fits = node is not None and node.op in ops and self.sheet.single_reader(value_name)
        return node if fits else None


def _expect_any(inputs: Sequence[Tensor]) -> None:
    """Errors: joined inputs with an open extent in one and a number at its place in another."""
    for extents in zip(*(each.sample[::-1] for each in inputs), strict=False):
        if -1 in extents and {*extents} - {-1, 1}:
            raise RefusedError("arrays for any number of steps", f"extents {[*extents]}")
