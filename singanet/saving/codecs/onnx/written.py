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
"""The supported types by their number in `TensorProto.DataType`; bfloat16 becomes float32."""


def element_type(dtype: np.dtype[Any]) -> int:
    """Return the number of a type."""
    return next(number for number, each in DTYPES.items() if each == dtype.newbyteorder("="))


PAD_MODES: Mapping[str, str] = {
    "constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"
}  # fmt: skip
"""The modes of `Pad` by ONNX's names."""


def inverted(table: Mapping[str, str]) -> Mapping[str, str]:
    """Invert ``table``."""
    return {ours: theirs for theirs, ours in table.items()}


class NoFormError(Exception):
    """A layer without a form in ONNX for its arguments; the text is the reason."""


@dataclass(eq=False, slots=True)
class Value:
    """An array in the graph; its first axis is named ``rows``."""

    name: str
    dtype: np.dtype[Any]
    rows: str = "batch"


@dataclass(eq=False, slots=True)
class WrittenNode:
    """A node; an absent input is None."""

    op: str
    name: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, Any]


class WrittenGraph:
    """A graph under construction, for operators of ``opset`` and floats of ``dtype``.

    ``names`` are reserved. ``scope`` is the current layer, the prefix of new names.
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
        """Return ``name``, with a number if it is in use, and reserve it."""
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}_{count}"
        self._names.add(found)
        return found

    def node(self, op: str, *inputs: Value | None, dtype: Any = None, **attributes: Any) -> Value:
        """Add a node and return its output, of ``dtype`` or the first input's."""
        return self.nodes_of(op, 1, *inputs, dtype=dtype, **attributes)[0]

    def nodes_of(
        self, op: str, count: int, *inputs: Value | None, dtype: Any = None, **attributes: Any
    ) -> list[Value]:
        """Add a node and return its ``count`` outputs."""
        kind = next(x.dtype for x in inputs if x is not None) if dtype is None else np.dtype(dtype)
        name = self.fresh(f"{self.scope}/{op}")
        rows = next((x.rows for x in inputs if x is not None and x.rows != "batch"), "batch")
        names = [name, *(self.fresh(f"{name}/{k}") for k in range(1, count))]
        outputs = [Value(each, kind, rows) for each in names]
        self.nodes.append(WrittenNode(op, name, list(inputs), outputs, attributes))
        return outputs

    def constant(self, array: Any, what: str, dtype: Any = None) -> Value:
        """Add an initializer of ``dtype``, or of the net's float type."""
        made = np.asarray(array, self.dtype if dtype is None else dtype)
        return self._initializer(f"{self.scope}/{what}", made.shape, made.dtype, lambda: made)

    def ints(self, numbers: Sequence[int], what: str) -> Value:
        """Add an int64 initializer, as for shapes and axes."""
        return self.constant(list(numbers), what, np.int64)

    def param(self, layer: Layer, suffix: str, shape: Shape | None = None) -> Value:
        """Add the parameter as an initializer with its own name, reshaped to ``shape``.

        A shared parameter is written once, in the first shape requested.
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
        """Add the parameter as `param`; None if the layer lacks it."""
        return self.param(layer, suffix, shape) if suffix in layer.params else None

    def of_params(
        self,
        name: str,
        shape: Shape,
        params: Sequence[Param],
        make: Callable[..., Array],
    ) -> Value:
        """Add an initializer of ``shape`` that ``make`` computes from ``params`` on the host.

        The arrays are fetched when the file is written, one initializer at a time. An initializer
        of shared parameters is written once.
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

    # -- common operators -----------------------------------------------------------------------

    def reshape(self, x: Value, extents: Sequence[int]) -> Value:
        """Reshape ``x``: 0 copies a size, -1 is the remainder."""
        return self.node("Reshape", x, self.ints(extents, "shape"))

    def transpose(self, x: Value, *order: int) -> Value:
        """Permute the axes."""
        return self.node("Transpose", x, perm=list(order))

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Remove these axes."""
        return self.node("Squeeze", x, self.ints(axes, "axes"))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Insert axes of size 1."""
        return self.node("Unsqueeze", x, self.ints(axes, "axes"))

    def cast(self, x: Value, dtype: Any) -> Value:
        """Cast to another dtype."""
        kind = np.dtype(dtype)
        return x if x.dtype == kind else self.node("Cast", x, dtype=kind, to=element_type(kind))

    def slice(
        self, x: Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Value:  # fmt: skip
        """Slice along each of ``axes``."""
        places = [self.ints(starts, "starts"), self.ints(ends, "ends"), self.ints(axes, "axes")]
        return self.node("Slice", x, *places, *([self.ints(steps, "steps")] if steps else []))

    def reversed(self, x: Value, axis: int) -> Value:
        """Reverse along ``axis``."""
        return self.slice(x, [axis], [-1], [FAR], [-1])

    def pad(
        self, x: Value, pads: Sequence[tuple[int, int]], mode: str = "constant", value: float = 0.0
    ) -> Value:
        """Pad by (before, after) along each axis, with the modes of `singanet.layers.Pad`."""
        if mode == "circular" and self.opset < 19:
            return self._wrapped(x, pads)
        ends = self.ints([before for before, _ in pads] + [after for _, after in pads], "pads")
        if mode == "constant":
            return self.node("Pad", x, ends, self.constant(value, "value", x.dtype))
        return self.node("Pad", x, ends, mode=inverted(PAD_MODES)[mode])

    def _wrapped(self, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
        for axis, (before, after) in enumerate(pads):
            last = [self.slice(x, [axis], [-before], [-FAR - 1])] if before else []
            first = [self.slice(x, [axis], [0], [after])] if after else []
            if before or after:
                x = self.node("Concat", *last, x, *first, axis=axis)
        return x

    def reduce(self, mode: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """Add a reduction; its axes are an input since opset 18, for sums since 13."""
        if mode == "Sum" or self.opset >= 18:
            return self.node(f"Reduce{mode}", x, self.ints(axes, "axes"), keepdims=int(keepdims))
        return self.node(f"Reduce{mode}", x, axes=list(axes), keepdims=int(keepdims))

    def of_every_sample(self, x: Value, layer: Layer, suffix: str) -> Value:
        """Broadcast the parameter to the batch size of ``x``."""
        shape = layer.params[suffix].shape
        whole = self.node("Concat", self.extent(x, 0), self.ints(shape, "shape"), axis=0)
        y = self.node("Expand", self.param(layer, suffix, (1, *shape)), whole)
        y.rows = x.rows
        return y

    def count(self, x: Value, axis: int) -> Value:
        """Return 0, 1, ... up to the size of ``x`` along ``axis``."""
        first, step = (self.constant(k, w, np.int64) for k, w in ((0, "first"), (1, "step")))
        return self.node("Range", first, self.squeeze(self.extent(x, axis), 0), step)

    def extent(self, x: Value, axis: int) -> Value:
        """Return the size of ``x`` along an axis at run time, (1,)."""
        return self.node("Shape", x, dtype=np.int64, start=axis, end=axis + 1)


FAR = int(np.iinfo(np.int64).min)
"""The end of a backwards slice: before the first element."""

Form: TypeAlias = "Callable[[WrittenGraph, Any, list[Value]], Value | list[Value]]"
"""A function that adds a layer to a graph and returns its output, or several."""
