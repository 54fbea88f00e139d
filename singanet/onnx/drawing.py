"""A graph drawn as a net, node by node: known numbers are worked out, the rest become layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

from singanet import layers
from singanet.base.arguments import name_trouble
from singanet.base.budget import Budget
from singanet.errors import FileFormatError, SingaNetError
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.onnx.fold import FOLDS, fold
from singanet.onnx.read import Graph, Node, Port
from singanet.onnx.values import BATCHES, Known, RefusedError, Tensor, Value, norm_axis
from singanet.params.param import Param
from singanet.types import Array, Shape

Converter: TypeAlias = "Callable[[Use], Value | Sequence[Value | None] | None]"
_OF_WEIGHT = re.compile(
    r"(.+?)(?:(?:/l0)?[./](?:weight|kernel|W|gamma|scale|output_weight)|_weight)$"
)
"""The layer in the name of an array: of attention's projections the last has the name of all."""
_NO_LETTERS = re.compile(r"[^\w.\-]+")


class Drawing:
    """The symbols of a net whose parameters have shapes, and in ``fills`` the arrays for them."""

    def __init__(
        self,
        graph: Graph,
        budget: Budget,
        where: str,
        table: Mapping[str, Converter],
        patterns: Mapping[str, Sequence[Converter]],
        shapes: Mapping[str, Shape],
        batch_axis: int | None,
    ) -> None:
        self.graph, self.budget, self.where = graph, budget, where
        self.table, self.patterns, self.batch_axis = table, patterns, batch_axis
        self.values: dict[str, Value] = {}
        self.makers: dict[str, Node] = {}
        self.readers: dict[str, int] = {}
        self.fills: list[tuple[Param, Array]] = []
        self.frozen: list[Layer] = []
        self.inputs: list[Symbol] = []
        self.fixed_batch: int | None = None
        self._batch: int | str = ""
        self._taken: set[str] = set()
        self._drawn_by: dict[str, list[str]] = {}
        self._casts: dict[int, Tensor] = {}
        self._same: dict[str, str] = {}
        for name in graph.outputs:
            self.readers[name] = self.readers.get(name, 0) + 1
        self._expect_known(graph)
        for port in graph.inputs:
            self.values[port.name] = self._input(port, shapes.get(port.name))
        self.draw_nodes(graph)
        self.outputs = self._outputs()

    def _expect_known(self, graph: Graph) -> None:
        """One error for all operators that have no converter."""
        missing: dict[str, list[str]] = {}
        stack = [graph]
        while stack:
            for node in stack.pop().nodes:
                if node.op not in self.table and node.op not in FOLDS:
                    where = node.name or (node.outputs[0] if node.outputs else "")
                    missing.setdefault(node.op, []).append(where)
                stack += [value for value in node.attributes.values() if isinstance(value, Graph)]
        if missing:
            told = [
                f"{op[:40]!r} at {', '.join(repr(name[:60]) for name in names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                for op, names in sorted(missing.items())
            ]
            raise FileFormatError(
                self.where,
                expected="operators that layers stand for, see docs/onnx.md",
                received="; ".join(told[:40]),
                advice="export the part of the model before them, or write them as layers",
            )

    # -- inputs and outputs -----------------------------------------------------------------

    def _input(self, port: Port, given: Shape | None) -> Tensor:
        shape = port.shape
        where = f"{self.where}, input {port.name[:60]!r}"
        if shape is None and given is None:
            raise FileFormatError(
                where,
                expected="a known number of axes",
                received="none in the file",
                advice=f"pass shapes={{{port.name[:60]!r}: (...)}}, without the batch axis",
            )
        declared = list(shape or ())
        axis = self._samples_along(declared)
        if axis is not None and declared:
            count = declared.pop(axis)
            if isinstance(count, int):
                self.fixed_batch = count
        sample = tuple(declared) if given is None else tuple(given)
        if not all(isinstance(size, int) and size > 0 for size in sample):
            raise FileFormatError(
                where,
                expected="a known extent along every axis but the first",
                received=str(shape)[:120],
                advice=f"pass shapes={{{port.name[:60]!r}: (...)}}, without the batch axis",
            )
        whole = port.dtype.kind in "iub"
        name = self.name_of(port.name)
        symbol = layers.Input(name, sample, port.dtype.name if whole else None)  # type: ignore[arg-type]
        self.inputs.append(symbol)
        return Tensor(symbol, port.dtype, axis, whole=whole)

    def _samples_along(self, declared: list[int | str]) -> int | None:
        """The axis of an input along which the samples stand: the one called as the first's is."""
        if self.batch_axis is None or not declared:
            return None
        axis = min(self.batch_axis, len(declared) - 1)
        if self._batch == "":
            self._batch = declared[axis]
        if isinstance(self._batch, str) and self._batch in declared:
            return declared.index(self._batch)
        return axis

    def _outputs(self) -> list[Symbol]:
        found = []
        for name in self.graph.outputs:
            value = self.values[name]
            if not isinstance(value, Tensor):
                value = self._constant_output(name, value)
            found.append(value.symbol)
        # The net's outputs are nodes of its own: one symbol twice, or an input, is passed on.
        return [
            layers.Dummy(self.name_of(name))(symbol)
            if symbol in found[:k] or not symbol.call.inputs
            else symbol
            for k, (name, symbol) in enumerate(zip(self.graph.outputs, found, strict=True))
        ]

    def _constant_output(self, name: str, value: Known) -> Tensor:
        if not self.inputs or not value.constant:
            raise FileFormatError(
                f"{self.where}, output {name[:60]!r}",
                expected="what depends on an input",
                received="a constant",
                advice="leave it out of the model's outputs",
            )
        node = self.makers.get(name) or Node("Constant", name, (), (name,), {}, 1)
        return Use(self, node).constant(value, value.array, None)

    # -- nodes ------------------------------------------------------------------------------

    def draw_nodes(self, graph: Graph) -> None:
        """Give a value to every output of the graph's nodes."""
        for name, array in graph.arrays.items():
            self.values[name] = Known((array, array), name)
        for node in graph.nodes:
            for name in filter(None, node.inputs):
                self.readers[name] = self.readers.get(name, 0) + 1
        for drawn in graph.nodes:
            node = self._behind_casts(drawn)
            for name in filter(None, node.outputs):
                self.makers[name] = node
            self._draw(node)
            self._pass_on(node)

    def _behind_casts(self, node: Node) -> Node:
        """The node with inputs as they were before nodes that change nothing."""
        if not any(name in self._same for name in node.inputs):
            return node
        return replace(node, inputs=tuple(self._same.get(name, name) for name in node.inputs))

    def _pass_on(self, node: Node) -> None:
        """Note what comes out of a node as it went in, so that patterns reach across it."""
        if node.op not in ("Cast", "Identity") or not node.inputs or not node.outputs:
            return
        (given, *_), (made, *_) = node.inputs, node.outputs
        x, y = self.values.get(given), self.values.get(made)
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x == y:
            self._same[made] = given
            self.readers[given] += self.readers.get(made, 0) - 1

    def _draw(self, node: Node) -> None:
        use = Use(self, node)
        where = f"{self.where}, {node.op[:40]} {(node.name or ' '.join(node.outputs))[:60]!r}"
        try:
            made = self._made(use)
        except RefusedError as error:
            raise FileFormatError(
                where, expected=error.expected, received=error.received, advice=_ADVICE
            ) from None
        except SingaNetError as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(
                where, expected=error.expected, received=error.received[:200], advice=error.advice
            ) from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise FileFormatError(
                where,
                expected="inputs and attributes that the operator has",
                received=f"{type(error).__name__}: {str(error)[:100]}",
                advice=_ADVICE,
            ) from None
        several = list(made) if isinstance(made, (list, tuple)) else [made]
        for name, value in zip(node.outputs, several, strict=False):
            if name and value is not None:
                self.values[name] = value
        self._drawn_by[node.outputs[0] if node.outputs else ""] = use.drawn
        missing = [name for name in node.outputs if name and name not in self.values]
        if any(self.readers.get(name) for name in missing):
            raise FileFormatError(
                where,
                expected="outputs that the layer has",
                received=f"{missing[0][:60]!r}, which it has not",
                advice=_ADVICE,
            )

    def _made(self, use: Use) -> Any:
        self.budget.spend(1 << 10)
        known = [v for v in use.values if v is not None]
        if all(isinstance(v, Known) for v in known) or use.node.op in ("Shape", "Size"):
            found = fold(use.node, use.values, self.budget)
            if found is not None:
                return found
        for pattern in self.patterns.get(use.node.op, ()):
            made = pattern(use)
            if made is not None:
                return made
        if use.node.op not in self.table:
            raise RefusedError("numbers that are known beforehand", "an input of the net")
        return self.table[use.node.op](use)

    # -- layers -----------------------------------------------------------------------------

    def name_of(self, wanted: str) -> str:
        """``wanted`` as a name that no other layer has."""
        plain = _NO_LETTERS.sub(".", wanted).strip(".")[:120] or "it"
        plain = "it" if name_trouble(plain) else plain
        name, count = plain, 1
        while name in self._taken:
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        return name

    def forget(self, names: Iterable[str]) -> None:
        """Free the names of layers drawn for nodes that a pattern stands for."""
        for output in names:
            for name in self._drawn_by.pop(output, ()):
                self._taken.discard(name)

    def single_reader(self, name: str) -> bool:
        """Whether one node alone reads the array, which is no output."""
        return self.readers.get(name, 0) == 1


_ADVICE = "see docs/onnx.md for what is taken, or export the model with fixed shapes"


@dataclass
class Use:
    """One node with the values that it reads: what a converter sees."""

    drawing: Drawing
    node: Node
    drawn: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = self.drawing.values
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
        """The input ``k``, None where it was left out."""
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
        """The input ``k``, a constant, or None where it was left out."""
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
        """What older operators say by an attribute and newer ones by their input ``k``."""
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
        name = self.drawing.name_of(wanted)
        self.drawn.append(name)
        return name

    def draw(self, layer: Layer, *inputs: Tensor, **arrays: Array | None) -> Any:
        """What ``layer`` makes of the inputs: a symbol or several; ``arrays`` fill parameters."""
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
            self.drawing.fills.append((param, array.reshape(param.shape)))

    def make(self, kind: Any, *inputs: Tensor, dtype: Any = None, **arguments: Any) -> Tensor:
        """A layer of one output, without parameters, of inputs with the samples in one place."""
        symbol = self.draw(kind(self.name(), **arguments), *inputs)
        return inputs[0].like(symbol, dtype)

    def floats(self, value: Tensor) -> Tensor:
        """``value`` as the floats that layers compute with."""
        if not value.whole:
            return value
        casts = self.drawing._casts
        key = id(value.symbol)
        if key not in casts:
            name = self.drawing.name_of(f"{value.symbol.call.layer.name}.cast")
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
        name = self.drawing.name_of(f"{self.node.name.strip('/') or self.node.op.lower()}.shape")
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
        name = self.drawing.name_of(base or "constant")
        self.drawn.append(name)
        layer = layers.Weight(name, array.shape)
        symbol = layer(self.drawing.inputs[0])
        self.fill(layer, {"weight": array})
        if not value.name or value.dtype.kind != "f" or array.size < 2:
            self.drawing.frozen.append(layer)
        return Tensor(symbol, value.dtype, axis)

    def _of_a_sample(self, value: Known, rank: int, axis: int | None) -> Array:
        """The array of one sample, without the axis of the samples, along which all are equal."""
        arrays = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in value.at]
        if axis is None:
            return Known.of(arrays[0], arrays[1]).array
        for array, batch in zip(arrays, BATCHES, strict=True):
            if array.shape[axis] not in (1, batch) or (
                array.shape[axis] > 1 and bool((array != array.take([0], axis)).any())
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

    def over_last(
        self, value: Tensor, last: int, layer: Layer, out_last: int | None = None
    ) -> Tensor:
        """``layer`` on the last axes of the graph's array, whatever stands before them."""
        tail = len(value.sample) - last
        if tail < 0 or (value.axis is not None and value.axis >= value.rank - last):
            raise RefusedError(
                f"samples in front of the last {last} axes", f"axis {value.axis} of {value.rank}"
            )
        lead = value.sample[:tail]
        if not lead:
            return value.like(self.draw(layer, value))
        wrapped = layers.TimeDistributed(self.drawing.name_of(f"{layer.name}.steps"), layer)
        self.drawn.append(wrapped.name)
        flat = self.reshaped(value, (prod(lead), *value.sample[tail:]))
        made = value.like(wrapped(flat))
        return made.like(self.reshaped(made, (*lead, *made.sample[1:])))

    def before(self, value_name: str, *ops: str) -> Node | None:
        """The node that makes an array which nobody else reads, if it is one of ``ops``."""
        node = self.drawing.makers.get(value_name)
        fits = node is not None and node.op in ops and self.drawing.single_reader(value_name)
        return node if fits else None


def perm_of(value: Tensor, perm: Sequence[int]) -> tuple[int | None, list[int]]:
    """Where the samples are after a transposition, and the order of the net's axes."""
    order: list[int] = []
    for axis in perm:
        if axis == value.axis:
            order += [value.axis + 1 + k for k in range(len(value.folds))]
        else:
            order.append(value.place(axis))
    return (None if value.axis is None else list(perm).index(value.axis)), order


__all__ = ["Converter", "Drawing", "Use", "norm_axis", "perm_of"]
