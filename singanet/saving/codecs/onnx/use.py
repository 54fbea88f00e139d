"""One node of an ONNX graph for its converter, and the sheet of the whole graph."""

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
    """A generator of unique names of layers."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._last: dict[str, int] = {}
        """The last number used, by name; all smaller ones are in use."""
        self._kept: set[str] = set()
        """Names of outputs, for the layers that compute them."""

    def take(self, wanted: str, as_written: bool = False) -> str:
        """Return ``wanted``, with a number if it is in use, and with dots for other signs.

        The signs stay if ``as_written`` and the name is one of a layer without parameters.
        """
        plain = wanted
        if not as_written or name_trouble(wanted):
            plain = _NO_LETTERS.sub(".", wanted).strip(".")[:120]
        plain = "it" if name_trouble(plain) else plain
        count = self._last.get(plain, 1)
        name = plain if count == 1 else f"{plain}_{count}"
        while name in self._used or name in self._kept:
            count += 1
            name = f"{plain}_{count}"
        self._used.add(name)
        self._last[plain] = count
        return name

    def keep(self, names: Iterable[str]) -> None:
        """Give no layer one of the names, unless it is allowed."""
        self._kept.update(names)

    def allow(self, names: Iterable[str]) -> None:
        """Allow names that were kept."""
        for name in self._kept.intersection(names):
            self._kept.discard(name)
            self._last.pop(name, None)

    def free(self, names: Iterable[str]) -> None:
        """Release the names."""
        freed = self._used.intersection(names)
        self._used -= freed
        for name in freed:
            self._last.pop(name, None)
            self._last.pop(name.rpartition("_")[0], None)


@dataclass
class Sheet:
    """The state of converting a graph; arrays have their names in the graph."""

    budget: Budget
    values: dict[str, Value] = field(default_factory=dict)
    makers: dict[str, FileNode] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    """The number of nodes and outputs that read each array."""
    names: Names = field(default_factory=Names)
    drawn_by: dict[str, list[str]] = field(default_factory=dict)
    """The layers of a node, by its first output."""
    fills: list[tuple[Param, Array]] = field(default_factory=list)
    """The values of parameters, assigned once the net exists."""
    frozen: list[Layer] = field(default_factory=list)
    fixed: list[Param] = field(default_factory=list)
    """Parameters that the file lacks, which are not trained."""
    written_out: frozenset[str] = frozenset()
    """Outputs of nodes that no pattern may match, since their inner values have other readers."""
    wholes: list[tuple[str, list[Symbol]]] = field(default_factory=list)
    """Patterns that became one layer: the output, and the symbols that it replaces."""
    inputs: list[Symbol] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The inputs with an axis of free size."""
    casts: dict[int, Tensor] = field(default_factory=dict)
    """The float casts of tensors, by the id of their symbol."""
    fixed_batch: int | None = None
    """The batch size that the file was exported with, None if it is free."""

    def read(self, names: Iterable[str]) -> None:
        """Count one more reader of each array."""
        for name in filter(None, names):
            self.readers[name] = self.readers.get(name, 0) + 1

    def forget(self, outputs: Iterable[str]) -> None:
        """Release the names of layers of nodes that a pattern replaces."""
        for output in outputs:
            self.names.free(self.drawn_by.pop(output, ()))

    def torn(self, ends: Sequence[Symbol]) -> frozenset[str]:
        """Return the outputs of `wholes` whose replaced symbols ``ends`` need as well."""
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
        """Return whether exactly one node reads the array, which is not an output."""
        return self.readers.get(name, 0) == 1


Converter: TypeAlias = "Callable[[Use], Value | Sequence[Value | None] | None]"
_OF_WEIGHT = re.compile(
    r"(.+?)(?:(?:/l0)?[./](?:weight|kernel|W|gamma|scale|output_weight)|_weight)$"
)
"""The layer's name in an array's name; attention has the name of its last projection."""


@dataclass
class Use:
    """One node with its input values: the argument of a converter."""

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
        """The opset version of the operator."""
        return self.node.opset

    def attribute(self, name: str, usual: Any = None) -> Any:
        """Return the attribute, or ``usual``."""
        return self.node.attributes.get(name, usual)

    def value(self, k: int) -> Value | None:
        """Return input ``k``, None if it is absent."""
        return self.values[k] if k < len(self.values) else None

    def tensor(self, k: int = 0) -> Tensor:
        """Return input ``k`` as a float tensor of the net; a known array becomes a `Weight`."""
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
        """Return input ``k``, a constant, or None if it is absent."""
        value = self.value(k)
        if isinstance(value, Tensor):
            raise RefusedError(
                f"a constant as input {k + 1}", "an array that depends on an input of the net"
            )
        return None if value is None else value.array

    def needed(self, k: int) -> Array:
        """Return input ``k``, a constant. Errors: `RefusedError` if it is absent."""
        array = self.array(k)
        if array is None:
            raise RefusedError(f"a constant as input {k + 1}", "none")
        return array

    def setting(self, name: str, k: int, usual: Any = None) -> Any:
        """Return an attribute of older operators, or input ``k`` of newer ones."""
        if name in self.node.attributes:
            return self.node.attributes[name]
        array = self.array(k)
        return usual if array is None else array.tolist()

    def name(self, k: int | None = None) -> str:
        """Return a layer's name, from the array of input ``k``, the node or the operator."""
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
        """Apply ``layer`` to the inputs and return its symbols; ``arrays`` fill its parameters."""
        if isinstance(layer, Combine):
            _expect_any(inputs)
        found = layer(*(each.symbol for each in inputs))
        self.fill(layer, {k.replace("__", "/"): v for k, v in arrays.items()})
        return found

    def fill(self, layer: Layer, arrays: Mapping[str, Array | None]) -> None:
        """Record the values of parameters, which `load` assigns once the net exists."""
        for suffix, array in arrays.items():
            if array is None:
                continue
            param = layer.params[suffix]
            if prod(array.shape) != prod(param.shape):
                raise RefusedError(f"{suffix} of shape {param.shape}", f"{array.shape}")
            self.sheet.fills.append((param, array.reshape(param.shape)))

    def make(self, kind: Any, *inputs: Tensor, dtype: Any = None, **arguments: Any) -> Tensor:
        """Apply a layer of one output without parameters; the samples of inputs have one axis."""
        symbol = self.draw(kind(self.name(), **arguments), *inputs)
        return inputs[0].like(symbol, dtype)

    def floats(self, value: Tensor) -> Tensor:
        """Return ``value`` cast to the net's float type."""
        if not value.whole:
            return value
        casts = self.sheet.casts
        key = id(value.symbol)
        if key not in casts:
            name = self.sheet.names.take(f"{value.symbol.call.layer.name}.cast")
            casts[key] = replace(value, symbol=layers.Cast(name)(value.symbol), whole=False)
        return casts[key]

    def reshaped(self, value: Tensor, sample: Sequence[int]) -> Symbol:
        """Return the symbol reshaped to ``sample``."""
        found = value.symbol
        while isinstance(found.call.layer, layers.Reshape):
            # Successive reshapes become one, or none if the shape is unchanged.
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
        """Prepend axes of size 1 to ``value`` up to ``rank`` axes."""
        more = rank - value.rank
        if more <= 0:
            return value
        axis = None if value.axis is None else value.axis + more
        return replace(value, symbol=self.reshaped(value, (1,) * more + value.sample), axis=axis)

    def weight(self, value: Known, other: Tensor, rank: int = 0) -> Tensor:
        """Return ``value`` as a tensor that broadcasts with ``other``, both of at least ``rank``.

        An array of the file with several elements is trainable, others are not.
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
        """Return ``array``, equal for every sample, as a tensor of the net."""
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
        """Return the array of one sample, without the axis of the samples."""
        if axis is None:
            return value.array.reshape((1,) * (rank - value.array.ndim) + value.array.shape)
        arrays = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in value.at]
        for array, batch in zip(arrays, BATCHES, strict=True):
            if array.shape[axis] not in (1, batch, self.sheet.fixed_batch) or not alike(
                array, axis
            ):
                raise RefusedError("constants equal for every sample", f"shape {array.shape}")
        first, second = (array.take(0, axis) for array in arrays)
        return Known.of(first, second).array

    def together(self, *positions: int, keep: bool = False) -> list[Tensor]:
        """Return the inputs as tensors of one rank, with the samples along one axis.

        They are cast to floats unless ``keep``.
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
                raise RefusedError("an array as every input", "an absent input")
            found.append(next(raised) if isinstance(value, Tensor) else self.weight(value, first))
        places = {(t.axis, t.before, t.after) for t in found}
        if len(places) > 1:
            raise RefusedError(
                "samples along one axis of all inputs", f"{sorted(map(str, places))}"
            )
        return found

    def before(self, value_name: str, *ops: str) -> FileNode | None:
        """Return the node that computes the array, if it is in ``ops`` and has one reader."""
        node = self.sheet.makers.get(value_name)
        fits = node is not None and node.op in ops and self.sheet.single_reader(value_name)
        return node if fits else None


def _expect_any(inputs: Sequence[Tensor]) -> None:
    """Errors: inputs with a free size in one and a number at its place in another."""
    for extents in zip(*(each.sample[::-1] for each in inputs), strict=False):
        if -1 in extents and {*extents} - {-1, 1}:
            raise RefusedError("arrays for any number of steps", f"sizes {[*extents]}")
