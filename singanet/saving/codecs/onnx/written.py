"""The ONNX graph that codecs write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from singanet.checkpoint.entry import Source
from singanet.layers.layer import Layer
from singanet.params.param import Param
from singanet.params.param_files import param_sources
from singanet.types import Array, Shape

BFLOAT16 = 16

DTYPES: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in {
        1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8",
        9: "?", 10: "f2", 11: "f8", 12: "u4", 13: "u8", BFLOAT16: "f4",
    }.items()
}  # fmt: skip
"""The types that are read, by their numbers in `TensorProto.DataType`; bfloat16 becomes float32."""


def element_type(dtype: np.dtype[Any]) -> int:
    """The number of a type."""
    return next(number for number, each in DTYPES.items() if each == dtype.newbyteorder("="))


PAD_MODES: Mapping[str, str] = {
    "constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"
}  # fmt: skip
"""Modes of `Pad`."""


def turned(table: Mapping[str, str]) -> Mapping[str, str]:
    """Theirs by ours."""
    return {ours: theirs for theirs, ours in table.items()}


class NoFormError(Exception):
    """A layer has no form in ONNX with these arguments; the text says why."""


@dataclass(eq=False, slots=True)
class Value:
    """An array in the graph, whose first axis is called ``rows``."""

    name: str
    dtype: np.dtype[Any]
    rows: str = "batch"


@dataclass(eq=False, slots=True)
class WrittenNode:
    """One operator; an input that is left out is None."""

    op: str
    name: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, Any]


class WrittenGraph:
    """A graph to put forms of layers into, for operators of ``opset`` and floats of ``dtype``.

    ``names`` are not given to anything that forms make. ``scope`` is the layer under way, after
    which that is called.
    """

    def __init__(self, opset: int, dtype: np.dtype[Any], names: Collection[str] = ()) -> None:
        self.opset = opset
        self.dtype = dtype
        self.scope = ""
        self.nodes: list[WrittenNode] = []
        self.initializers: list[tuple[Value, Source]] = []
        self._names = set(names)
        self._params: dict[int, tuple[Value, Shape]] = {}
        self._made: dict[Any, Value] = {}

    def fresh(self, name: str) -> str:
        """``name``, or with a number behind it where that is taken; it is taken now."""
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}_{count}"
        self._names.add(found)
        return found

    def node(self, op: str, *inputs: Value | None, dtype: Any = None, **attributes: Any) -> Value:
        """The output of a new node: of ``dtype``, or that of the first input."""
        return self.nodes_of(op, 1, *inputs, dtype=dtype, **attributes)[0]

    def nodes_of(
        self, op: str, count: int, *inputs: Value | None, dtype: Any = None, **attributes: Any
    ) -> list[Value]:
        """The ``count`` outputs of a new node."""
        kind = next(x.dtype for x in inputs if x is not None) if dtype is None else np.dtype(dtype)
        name = self.fresh(f"{self.scope}/{op}")
        rows = next((x.rows for x in inputs if x is not None and x.rows != "batch"), "batch")
        names = [name, *(self.fresh(f"{name}/{k}") for k in range(1, count))]
        outputs = [Value(each, kind, rows) for each in names]
        self.nodes.append(WrittenNode(op, name, list(inputs), outputs, attributes))
        return outputs

    def constant(self, array: Any, what: str, dtype: Any = None) -> Value:
        """An initializer: numbers of ``dtype``, or of the net's float type."""
        made = np.asarray(array, self.dtype if dtype is None else dtype)
        return self._initializer(f"{self.scope}/{what}", made.shape, made.dtype, lambda: made)

    def ints(self, numbers: Sequence[int], what: str) -> Value:
        """An initializer of int64, as shapes and axes are."""
        return self.constant(list(numbers), what, np.int64)

    def param(self, layer: Layer, suffix: str, shape: Shape | None = None) -> Value:
        """The parameter as an initializer under its own name, its elements in ``shape``.

        A shared parameter is written once, in the shape that is asked for first.
        """
        param = layer.params[suffix]
        found = self._params.get(id(param.root))
        wanted = param.shape if shape is None else shape
        if found is None:
            value = self.of_params(param.name, wanted, [param], lambda array: array)
            self._params[id(param.root)] = value, wanted
            return value
        value, there = found
        return value if there == wanted else self.reshape(value, wanted)

    def optional(self, layer: Layer, suffix: str, shape: Shape | None = None) -> Value | None:
        """`param`, or None for one that the layer does not have."""
        return self.param(layer, suffix, shape) if suffix in layer.params else None

    def of_params(
        self,
        name: str,
        shape: Shape,
        params: Sequence[Param],
        make: Callable[..., Array],
    ) -> Value:
        """An initializer of ``shape`` that ``make`` makes of the arrays of ``params`` on the host.

        They are asked for when the file is written, one initializer after the other. What layers
        share stands there once.
        """
        key = (tuple(shape), *(id(param.root) for param in params))

        def fetch() -> Array:
            arrays = [each.array() for each in param_sources(params)]
            return make(*arrays)

        if key not in self._made:
            self._made[key] = self._initializer(name, shape, params[0].array_type, fetch)
        return self._made[key]

    def _initializer(
        self, name: str, shape: Shape, dtype: np.dtype[Any], fetch: Callable[[], Array]
    ) -> Value:
        value = Value(self.fresh(name), dtype)
        kind = dtype.newbyteorder("<")
        self.initializers.append((value, Source(value.name, tuple(shape), kind, fetch)))
        return value

    # -- what many forms need ---------------------------------------------------------------

    def reshape(self, x: Value, extents: Sequence[int]) -> Value:
        """The elements in another shape: 0 copies an extent, one -1 takes what remains."""
        return self.node("Reshape", x, self.ints(extents, "shape"))

    def transpose(self, x: Value, *order: int) -> Value:
        """The axes in another order."""
        return self.node("Transpose", x, perm=list(order))

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Without these axes."""
        return self.node("Squeeze", x, self.ints(axes, "axes"))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """With axes of extent 1 there."""
        return self.node("Unsqueeze", x, self.ints(axes, "axes"))

    def cast(self, x: Value, dtype: Any) -> Value:
        """In another type."""
        kind = np.dtype(dtype)
        return x if x.dtype == kind else self.node("Cast", x, dtype=kind, to=element_type(kind))

    def slice(
        self, x: Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Value:  # fmt: skip
        """A range along each of ``axes``."""
        places = [self.ints(starts, "starts"), self.ints(ends, "ends"), self.ints(axes, "axes")]
        return self.node("Slice", x, *places, *([self.ints(steps, "steps")] if steps else []))

    def reversed(self, x: Value, axis: int) -> Value:
        """The other way round along ``axis``."""
        return self.slice(x, [axis], [-1], [FAR], [-1])

    def pad(
        self, x: Value, pads: Sequence[tuple[int, int]], mode: str = "constant", value: float = 0.0
    ) -> Value:
        """With a border of (before, after) along each axis, as `singanet.layers.Pad` calls it."""
        if mode == "circular" and self.opset < 19:
            return self._wrapped(x, pads)
        ends = self.ints([before for before, _ in pads] + [after for _, after in pads], "pads")
        if mode == "constant":
            return self.node("Pad", x, ends, self.constant(value, "value", x.dtype))
        return self.node("Pad", x, ends, mode=turned(PAD_MODES)[mode])

    def _wrapped(self, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
        for axis, (before, after) in enumerate(pads):
            last = [self.slice(x, [axis], [-before], [-FAR - 1])] if before else []
            first = [self.slice(x, [axis], [0], [after])] if after else []
            if before or after:
                x = self.node("Concat", *last, x, *first, axis=axis)
        return x

    def reduce(self, mode: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """`ReduceMean` and the like: axes became an input with opset 18, of the sum with 13."""
        if mode == "Sum" or self.opset >= 18:
            return self.node(f"Reduce{mode}", x, self.ints(axes, "axes"), keepdims=int(keepdims))
        return self.node(f"Reduce{mode}", x, axes=list(axes), keepdims=int(keepdims))

    def of_every_sample(self, x: Value, layer: Layer, suffix: str) -> Value:
        """The parameter as often as ``x`` has samples."""
        shape = layer.params[suffix].shape
        whole = self.node("Concat", self.extent(x, 0), self.ints(shape, "shape"), axis=0)
        y = self.node("Expand", self.param(layer, suffix, (1, *shape)), whole)
        y.rows = x.rows
        return y

    def count(self, x: Value, axis: int) -> Value:
        """0, 1, ... as far as ``x`` goes along ``axis``."""
        first, step = (self.constant(k, w, np.int64) for k, w in ((0, "first"), (1, "step")))
        return self.node("Range", first, self.squeeze(self.extent(x, axis), 0), step)

    def extent(self, x: Value, axis: int) -> Value:
        """How far ``x`` goes along an axis, (1,), when the graph is run."""
        return self.node("Shape", x, dtype=np.int64, start=axis, end=axis + 1)


FAR = int(np.iinfo(np.int64).min)
"""Before the first element: where a range that goes backwards ends."""

Form: TypeAlias = "Callable[[WrittenGraph, Any, list[Value]], Value | list[Value]]"
"""A function that puts a layer into a graph: its inputs give the output, or several."""
