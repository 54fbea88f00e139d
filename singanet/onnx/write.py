"""The bytes of an ``.onnx`` file, written array by array."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from singanet.base.files import remove_leftovers, replacing
from singanet.checkpoint.entry import Source
from singanet.checkpoint.streaming import bytes_of
from singanet.codecs.onnx.vocabulary import element_type
from singanet.codecs.onnx.written import Value, WrittenGraph, WrittenNode
from singanet.schema.onnx_pb2 import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

__all__ = ["Port", "write"]

LARGEST = (1 << 31) - 1
"""Bytes of a file that protobuf reads."""

_SMALL = 1 << 10
"""Arrays of fewer bytes, such as shapes, stay with the graph."""

_PAGE = 4096
"""Where arrays in a file of their own begin, so that they can be mapped."""

Port = tuple[Value, Sequence[int | str]]
"""An input or output of the graph, with its extents; those with names are free."""


def write(
    path: Path,
    graph: WrittenGraph,
    name: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    apart: bool,
) -> None:
    """Write the graph to ``path``, with ``apart`` its arrays to a file beside it.

    A file that protobuf would be too small for gets its arrays apart as well. Whatever happens,
    the old file with its arrays is there, or the new one with its own. Errors: `FileAccessError`.
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
    with replacing(path, nbytes=length) as beside, beside.open("wb") as stream:
        stream.write(head + _field(7, length) + body)
        for source, field in zip(sources, fields, strict=True):
            stream.write(field + _inside(source))
            stream.write(bytes_of(source.array()))
    _remove_arrays(path, None)


def _write_apart(path: Path, head: bytes, body: bytes, sources: Sequence[Source]) -> None:
    """The graph to ``path``; its arrays to a file whose name no other graph knows.

    So no crash leaves a graph with the arrays of another one.
    """
    data = path.with_name(f"{path.name}.{secrets.token_hex(4)}.data")
    tensors = []
    try:
        with replacing(data, _called(path)) as beside, beside.open("wb") as stream:
            for source in sources:
                tensors.append(_placed(stream, source, data.name))
        graph = body + b"".join(_field(5, len(text)) + text for text in tensors)
        with replacing(path) as beside:
            beside.write_bytes(head + _field(7, len(graph)) + graph)
    except BaseException:
        with contextlib.suppress(OSError):
            data.unlink()
        raise
    _remove_arrays(path, data)


def _called(path: Path) -> str:
    """One name for the arrays of all graphs at ``path``."""
    return f"{path.name}.data"


def _remove_arrays(path: Path, but: Path | None) -> None:
    """Remove the arrays of earlier graphs at ``path``, those of writers that died too."""
    remove_leftovers(path.parent, _called(path))
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{8}}\.data")
    for old in path.parent.iterdir():
        if pattern.fullmatch(old.name) and old != but:
            with contextlib.suppress(OSError):
                old.unlink()


def _placed(stream: BinaryIO, source: Source, file: str) -> bytes:
    """The message of an array that was written to ``stream``, or that it is if it is small."""
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
    """The message of an array as far as its numbers, which end it."""
    return _tensor(source).SerializeToString() + _field(9, source.nbytes)


def _tensor(source: Source) -> Any:
    return TensorProto(name=source.name, dims=source.shape, data_type=element_type(source.dtype))


def _field(number: int, length: int) -> bytes:
    """What stands before ``length`` bytes of a protobuf message: https://protobuf.dev/encoding."""
    made, rest = bytearray([number << 3 | 2]), length
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def _ir_version(opset: int) -> int:
    """The oldest version of the format that may have the operators of ``opset``."""
    return 8 if opset <= 18 else 9 if opset <= 20 else 10


def _port(value: Value, extents: Sequence[int | str]) -> Any:
    made = ValueInfoProto(name=value.name)
    made.type.tensor_type.elem_type = element_type(value.dtype)
    shape = made.type.tensor_type.shape
    # A sample without axes has a shape as well.
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
    """The attribute; its type is that of the value, or of each in a list."""
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
