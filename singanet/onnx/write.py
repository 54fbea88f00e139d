"""A writer of nets as ONNX files."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.files import expect_suffix, path_of, remove_leftovers, replacing
from singanet.base.tracebacks import entry_point
from singanet.checkpoint.entry import Source, bytes_of
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError
from singanet.layers.shapes import Dummy
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import Loss
from singanet.loss.regression import Poisson
from singanet.onnx.onnx_pb2 import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)
from singanet.saving.codecs.describe import put
from singanet.saving.codecs.onnx.written import (
    NoFormError,
    Value,
    WrittenGraph,
    WrittenNode,
    element_type,
)
from singanet.saving.predictor import Predictor, expect_own_calls
from singanet.types import Shape

LARGEST = (1 << 31) - 1
"""The maximum bytes of a protobuf file."""

_SMALL = 1 << 10
"""Smaller arrays, such as shapes, are always stored in the graph."""

_PAGE = 4096
"""The alignment of external arrays, so that they can be memory-mapped."""

Port = tuple[Value, Sequence[int | str]]
"""An input or output of the graph, with its shape; named axes are free."""


def write(
    path: Path,
    graph: WrittenGraph,
    name: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    apart: bool,
) -> None:
    """Write the graph to ``path``; ``apart`` writes its arrays to a second file.

    A graph above protobuf's limit always gets the second file. After a crash either the old or the
    new files are complete. Errors: `FileAccessError`.
    """
    model = ModelProto(ir_version=_ir_version(graph.opset), producer_name="singanet")
    model.opset_import.add(domain="", version=graph.opset)
    made = GraphProto(name=name, node=map(_node, graph.nodes))
    made.input.extend(_port(*port) for port in inputs)
    made.output.extend(_port(*port) for port in outputs)
    head, body = model.SerializeToString(), made.SerializeToString()
    sources = [source for _, source in graph.initializers]
    sizes = [len(_inside(source)) + source.nbytes for source in sources]
    whole = len(head) + len(body) + sum(size + 16 for size in sizes)
    if apart or whole > LARGEST:
        _write_apart(path, head, body, sources)
        return
    fields = [_field(5, size) for size in sizes]
    length = len(body) + sum(map(len, fields)) + sum(sizes)
    with replacing(path, nbytes=length) as temporary, temporary.open("wb") as stream:
        stream.write(head + _field(7, length) + body)
        for source, field in zip(sources, fields, strict=True):
            stream.write(field + _inside(source))
            stream.write(bytes_of(source.array()))
    _remove_arrays(path, None)


def _write_apart(path: Path, head: bytes, body: bytes, sources: Sequence[Source]) -> None:
    """Write the graph to ``path`` and its arrays to a file with a new random name.

    Thus no crash leaves a graph with the arrays of another one.
    """
    data = path.with_name(f"{path.name}.{secrets.token_hex(4)}.data")
    tensors = []
    try:
        with replacing(data, _array_file(path)) as temporary, temporary.open("wb") as stream:
            for source in sources:
                tensors.append(_placed(stream, source, data.name))
        graph = body + b"".join(_field(5, len(text)) + text for text in tensors)
        with replacing(path) as temporary:
            temporary.write_bytes(head + _field(7, len(graph)) + graph)
    except BaseException:
        with contextlib.suppress(OSError):
            data.unlink()
        raise
    _remove_arrays(path, data)


def _array_file(path: Path) -> str:
    """Return the common name of the array files of all graphs at ``path``."""
    return f"{path.name}.data"


def _remove_arrays(path: Path, but: Path | None) -> None:
    """Remove the arrays of earlier graphs at ``path``, including crashed writers'."""
    remove_leftovers(path.parent, _array_file(path))
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}\.data")
    for old in path.parent.iterdir():
        if pattern.fullmatch(old.name) and old != but:
            with contextlib.suppress(OSError):
                old.unlink()


def _placed(stream: BinaryIO, source: Source, file: str) -> bytes:
    """Write an array to ``stream`` and return its message; small arrays go into the message."""
    if source.nbytes < _SMALL:
        return _inside(source) + bytes(bytes_of(source.array()))
    stream.write(bytes(-stream.tell() % _PAGE))
    tensor = _tensor(source)
    tensor.data_location = TensorProto.EXTERNAL
    places = {"location": file, "offset": stream.tell(), "length": source.nbytes}
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))
    stream.write(bytes_of(source.array()))
    return bytes(tensor.SerializeToString())


def _inside(source: Source) -> bytes:
    """Return the message of an array up to its elements, which come last."""
    return _tensor(source).SerializeToString() + _field(9, source.nbytes)


def _tensor(source: Source) -> Any:
    return TensorProto(name=source.name, dims=source.shape, data_type=element_type(source.dtype))


def _field(number: int, length: int) -> bytes:
    """Return the tag and length of a protobuf field: https://protobuf.dev/encoding."""
    made, rest = bytearray([number << 3 | 2]), length
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def _ir_version(opset: int) -> int:
    """Return the oldest IR version for the operators of ``opset``."""
    return 8 if opset <= 18 else 9 if opset <= 20 else 10


def _port(value: Value, extents: Sequence[int | str]) -> Any:
    made = ValueInfoProto(name=value.name)
    made.type.tensor_type.elem_type = element_type(value.dtype)
    shape = made.type.tensor_type.shape
    # A scalar sample has a shape as well.
    shape.SetInParent()
    for extent in extents:
        shape.dim.add(**{"dim_param" if isinstance(extent, str) else "dim_value": extent})
    return made


def _node(node: WrittenNode) -> Any:
    made = NodeProto(name=node.name, op_type=node.op)
    made.input.extend("" if value is None else value.name for value in node.inputs)
    made.output.extend(value.name for value in node.outputs)
    for key, value in node.attributes.items():
        made.attribute.append(_attribute(key, value))
    return made


def _attribute(name: str, value: Any) -> Any:
    """Return the attribute; its type follows from the value, or from the first of a list."""
    kinds = {int: "INT", float: "FLOAT", str: "STRING"}
    fields = {"INT": ("i", "ints"), "FLOAT": ("f", "floats"), "STRING": ("s", "strings")}
    several = isinstance(value, list)
    kind = kinds[type(value[0] if several else value)]
    plain = value if several else [value]
    encoded = [text.encode() for text in plain] if kind == "STRING" else plain
    made = AttributeProto(name=name, type=f"{kind}S" if several else kind)
    if several:
        getattr(made, fields[kind][1]).extend(encoded)
    else:
        setattr(made, fields[kind][0], encoded[0])
    return made


_WHERE = "onnx.save"
_OPSETS = range(17, 24)
_LINKS = {"softmax": "Softmax", "sigmoid": "Sigmoid"}


@entry_point
def save(
    net: Net | Predictor,
    f: str | os.PathLike[str],
    opset: int = 17,
    external_data: bool = False,
) -> None:
    """Write ``net`` in evaluation mode as an ONNX graph.

    Inputs and outputs have the net's names and a free batch size. Parameters are initializers with
    their own names. The graph of a `Predictor` computes its predictions: with folded
    normalisations, and the loss's link at the end. A graph has no losses, metrics and optimizers.

    Errors: `ArgumentError` if layers have no form in ONNX, listing them, or for an unknown opset or
    suffix; `FileAccessError`. An existing file is then unchanged.

    Args:
        net: A net, or a `Predictor`.
        f: Path of the file, which ends in ``.onnx``.
        opset: Version of ONNX's operators, 17 to 23.
        external_data: Whether to write arrays to a second file, ``<name>.<token>.data``, as is done
            for more than 2 GB.
    """
    path = path_of(f, "f")
    expect_suffix(_WHERE, path, (".onnx",))
    if checked_count(_WHERE, "argument opset", opset, 1) not in _OPSETS:
        raise ArgumentError(
            f"{_WHERE}, argument opset",
            expected=f"{_OPSETS.start} to {_OPSETS.stop - 1}",
            received=str(opset),
            advice="omit it for 17, which most programs read",
        )
    if isinstance(net, Predictor):
        with net.constants() as constant:
            made = _Export(constant.loose, opset, constant.dtype, True, constant.loss)
            write(path, made.graph, "predictor", made.inputs, made.outputs, external_data)
        return
    if not isinstance(net, Net):
        raise ArgumentError(
            _WHERE,
            expected="a net, or a Predictor from net.predictor()",
            received=type(net).__name__,
            advice="for an Executor, save the net that it runs",
        )
    expect_own_calls(net, _WHERE)
    made = _Export(net._execution_plan(), opset, net.dtype)
    write(path, made.graph, net.name or "net", made.inputs, made.outputs, external_data)


class _Export:
    """The graph of a plan, with its inputs and outputs.

    With ``predicts`` the outputs equal `net.predict`: cast to at least float32, through the link of
    ``loss``.
    """

    def __init__(
        self, plan: Plan, opset: int, dtype: np.dtype[Any], predicts: bool = False, loss: Any = None
    ) -> None:
        if dtype not in ("float16", "float32", "float64"):
            raise ArgumentError(
                _WHERE,
                expected="a net of float16, float32 or float64",
                received=f"a net of {dtype}",
                advice="call net.as_type('float32') first",
            )
        self.graph = WrittenGraph(opset, dtype)
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self._predicts = predicts
        self._slots = [Value("", dtype)] * len(plan.slot_shapes)
        # Inputs and outputs get their names first, before intermediate arrays.
        place = {name: k for k, name in enumerate(plan.listed)}
        starts = [step for step in plan.steps if step.fed]
        starts.sort(key=lambda step: place.get(step.name, len(place)))
        fed = {step.name: self._feed(plan, step) for step in starts}
        ends = [plan.by_name[name] for name in plan.outputs]
        names = {step.name: [self.graph.fresh(name) for name in _names(step)] for step in ends}
        refused = []
        for step in plan.steps:
            try:
                self._add(step, fed.get(step.name), named=step.name not in names)
            except NoFormError as reason:
                refused.append(f"{step.name!r} ({type(step.layer).__name__}): {reason}")
        if refused:
            raise ArgumentError(
                _WHERE,
                expected="layers with a form in ONNX",
                received=", ".join(refused),
                advice="save the net with net.save_model, or replace these layers",
            )
        for step in ends:
            link = _link(loss.losses.get(step.name) if isinstance(loss, MultiLoss) else loss)
            for slot, shape, name in zip(
                step.out_slots, step.out_shapes, names[step.name], strict=True
            ):
                self._end(self._slots[slot], link, name, shape)

    def _feed(self, plan: Plan, step: NodeStep) -> list[Value]:
        """Return the inputs of ``step``: a `Dummy` gives its own name.

        Other inputs have the names in `net.gradients`.
        """
        shapes: Any = step.layer.in_shapes
        name = "input" if len(plan.inputs) == 1 else f"{step.name}/input"
        # A `Dummy` that folding inserted before a fed layer has that layer's name, and no shapes.
        if type(step.layer) is Dummy and step.layer.out_shapes is not None:
            name = step.name
        values = []
        for k, shape in enumerate(shapes if isinstance(shapes, list) else [shapes]):
            wanted = f"{name}/{k}" if isinstance(shapes, list) else name
            value = Value(self.graph.fresh(wanted), step.fed_type(k))
            self.inputs.append((value, _extents(value, shape)))
            values.append(value)
        return values

    def _add(self, step: NodeStep, fed: list[Value] | None, named: bool) -> None:
        """Add a step to the graph; ``named`` names its outputs after it."""
        g = self.graph
        g.scope, before = step.name, len(g.nodes)
        xs = [self._slots[slot] for slot in step.in_slots] if fed is None else fed
        # A layer that computes with integers takes them as floats.
        xs = [
            g.cast(x, g.dtype) if step.layer._input_kind(k) == "floats" else x
            for k, x in enumerate(xs)
        ]
        made = put(g, step.layer, xs)
        new = {id(value) for node in g.nodes[before:] for value in node.outputs}
        for slot, value, name in zip(step.out_slots, made, _names(step), strict=True):
            self._slots[slot] = value
            if named and id(value) in new:
                value.name = g.fresh(name)

    def _end(self, value: Value, link: str, name: str, shape: Shape) -> None:
        """Make ``value``, through the operator ``link``, an output called ``name``."""
        g = self.graph
        g.scope = name
        y = g.cast(value, np.float32) if self._predicts and value.dtype == np.float16 else value
        if link:
            y = g.node(link, y)
        if any(y is port for port, _ in (*self.inputs, *self.outputs)):
            y = g.node("Identity", y)
        y.name = name
        known = [extent for _, extents in self.inputs for extent in extents[1:]]
        free = [extent for extent in known if isinstance(extent, str)]
        self.outputs.append((y, _extents(y, shape, free[0] if len(free) == 1 else "")))


def _names(step: NodeStep) -> list[str]:
    """Return the names of the outputs of ``step``."""
    count = len(step.out_slots)
    return [f"{step.name}/{k}" for k in range(count)] if step.many_out else [step.name]


def _extents(value: Value, shape: Shape, free: str = "") -> list[int | str]:
    """Return the sizes of a batch; a free axis is named ``free``, or after the array."""
    return [
        value.rows,
        *(free or f"{value.name}_{k}" if size == -1 else size for k, size in enumerate(shape, 1)),
    ]


def _link(loss: Loss | None) -> str:
    """Return the operator of the link of ``loss``, or "". Errors: a user-defined link."""
    link: Any = Loss.link if loss is None else type(loss).link
    if loss is None or (link is Loss.link and not loss.link_name):
        return ""
    if link is Poisson.link:
        return "Exp"
    operator = _LINKS.get(loss.link_name)
    if operator is None or not link.__module__.startswith("singanet."):
        raise ArgumentError(
            _WHERE,
            expected="a loss whose link is softmax, sigmoid, exp or none",
            received=f"{type(loss).__name__}, with another link",
            advice="save the net, whose outputs are the scores before the link",
        )
    return operator
