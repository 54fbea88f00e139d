"""A reader of ONNX files within a memory budget."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from singanet import layers
from singanet.base.arguments import Budget, checked_shape, own_errors
from singanet.base.files import path_of
from singanet.base.heap import LARGE, mapped
from singanet.base.kinds import ONNX, kind_of_stream
from singanet.checkpoint.reader import open_file
from singanet.errors import FileAccessError, FileFormatError, UnsafeFileError
from singanet.layers.symbol import Symbol
from singanet.onnx.onnx_pb2 import AttributeProto, ModelProto, TensorProto
from singanet.saving.codecs.onnx.use import Sheet, Use
from singanet.saving.codecs.onnx.values import FileNode, Known, Tensor
from singanet.saving.codecs.onnx.written import BFLOAT16, DTYPES
from singanet.types import Array, Shape

Buffer = bytes | memoryview
_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIELDS = {"f4": "float_data", "f8": "double_data", "i8": "int64_data", "u4": "uint64_data",
           "u8": "uint64_data"}  # fmt: skip


def array_of(tensor: Any, raw_data: Buffer, folder: Path, where: str, budget: Budget) -> Array:
    """Return the array of a ``TensorProto`` whose bytes are ``raw_data``, read-only.

    Errors: `FileFormatError`, `UnsafeFileError`.
    """
    place = f"{where}, array {tensor.name[:60]!r}"
    if tensor.HasField("segment") or tensor.data_type not in DTYPES:
        raise _wrong(
            place,
            "floats, integers or booleans of at least 8 bits, in one segment",
            "a segment" if tensor.HasField("segment") else f"data type {tensor.data_type}",
        )
    half = tensor.data_type == BFLOAT16
    stored = (np.dtype("u2") if half else DTYPES[tensor.data_type]).newbyteorder("<")
    shape = checked_shape(tensor.dims, stored.itemsize, 1 << 40, lambda e, r: _wrong(place, e, r))
    count = prod(shape)
    if tensor.data_location == TensorProto.DataLocation.EXTERNAL:
        raw = _outside(tensor, folder, place, count * stored.itemsize, budget)
        array = np.frombuffer(raw, stored)
    elif tensor.HasField("raw_data"):
        if len(raw_data) != count * stored.itemsize:
            raise _wrong(place, f"{count * stored.itemsize} bytes", f"{len(raw_data)} bytes")
        # A small array may stay with a layer, and must not keep the whole file in memory.
        array = np.frombuffer(raw_data if len(raw_data) >= LARGE else bytes(raw_data), stored)
    else:
        array = _typed(tensor, stored, count, place, half)
    if half:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array = array.reshape(shape).astype(DTYPES[tensor.data_type], copy=False)
    array.flags.writeable = False
    return array


def _typed(tensor: Any, stored: np.dtype[Any], count: int, place: str, half: bool) -> Array:
    """Return the elements of the typed field; int32_data stores types of at most 16 bits."""
    name = _FIELDS.get(f"{stored.kind}{stored.itemsize}", "int32_data")
    filled = [each for each in _TYPED if len(getattr(tensor, each))]
    values = getattr(tensor, name)
    if filled not in ([], [name]) or len(values) != count:
        raise _wrong(place, f"{count} numbers in {name}", f"{len(values)}, and {filled}")
    if stored.kind == "f" and stored.itemsize == 2:
        bits = np.fromiter(values, np.int32, count).astype(np.uint16)
        return bits.view(np.float16)
    if name == "int32_data":
        wide = np.fromiter(values, np.int32, count)
        return wide.astype(np.uint16 if half else stored)
    return np.fromiter(values, stored.newbyteorder("="), count)


def _outside(tensor: Any, folder: Path, place: str, nbytes: int, budget: Budget) -> Buffer:
    """Return the bytes of an external array, whose file must be in the model's folder."""
    about = {entry.key: entry.value for entry in tensor.external_data}
    location = about.get("location", "")
    parts = location.replace("\\", "/").split("/")
    if not location or os.path.isabs(location) or any(p in ("", ".", "..") for p in parts[:-1]):
        raise _unsafe(place, repr(location)[:80])
    path = folder.joinpath(*parts)
    if parts[-1] in ("", ".", "..") or "\0" in location or ":" in location:
        raise _unsafe(place, repr(location)[:80])
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _unsafe(place, repr(location)[:80])
    try:
        # O_NOFOLLOW refuses a link that was created after the check.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except (OSError, ValueError) as error:
        raise FileAccessError(
            place,
            expected=f"the file {location[:80]!r} in the model's folder",
            received=str(error)[:120],
            advice="store the files of a model together, as exported",
        ) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(handle)
        raise _unsafe(place, f"{location[:60]!r}, a link or not a regular file")
    with os.fdopen(handle, "rb") as stream:
        try:
            start = int(about.get("offset", "0"))
            length = int(about.get("length", str(nbytes)))
        except ValueError:
            raise _wrong(place, "an offset and a length in bytes", str(about)[:80]) from None
        if length != nbytes or not 0 <= start <= status.st_size - length:
            received = f"{length} from {start} on, of {status.st_size}"
            raise _wrong(place, f"{nbytes} bytes inside of {location[:60]!r}", received)
        # Bytes that exist on disk are granted: whoever wrote the file paid for them.
        budget.grant(nbytes)
        budget.spend(nbytes)
        return mapped(stream, start + nbytes)[start:]


def _wrong(place: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        place, expected=expected, received=received, advice="export the model again"
    )


def _unsafe(place: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        place,
        expected="external data in a regular file in the model's folder",
        received=received,
        advice="store the files of a model together, and do not trust this file",
    )


NEWEST = 28
"""The newest supported opset."""
_OLDEST = 7
_LARGEST = (1 << 31) - 1
_PER_MESSAGE, _PER_TEXT = 160, 40
_TOGETHER = 1 << 10
"""The number of fields whose bytes are spent at once."""
_DEEPEST = 40
_NESTED = 8
"""The maximum nesting of functions and of graphs."""
_OURS = ("", "ai.onnx")


@dataclass(frozen=True)
class Port:
    """An input or output: its dtype and shape, in which free axes are strings."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...] | None


@dataclass
class FileGraph:
    """The graph of a file, with its nodes in topological order."""

    inputs: list[Port]
    outputs: list[str]
    nodes: list[FileNode] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)


def read(path: str | os.PathLike[str], max_bytes: int | None = None) -> tuple[FileGraph, Budget]:
    """Read the graph of a file; return it with the remaining memory budget.

    The budget follows from the file's size, or ``max_bytes``. External arrays are read from the
    file's folder only. Errors: `FileAccessError`; `FileFormatError` if the file is not an ONNX
    model; `UnsafeFileError` if it asks for more memory than its size allows.
    """
    path = path_of(path)
    where = f"onnx file {str(path)!r}"
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > _LARGEST:
            raise broken(where, f"at most {_LARGEST} bytes", f"{size}")
        data = mapped(stream, size)
    budget = Budget(max(len(data), (max_bytes or 0) // 8), lambda e, r: _forged(where, e, r))
    try:
        if not data:
            raise DecodeError("an empty file")
        walk = _MessageWalk(data, budget, where)
        model = ModelProto.FromString(walk.without_arrays())
    except (DecodeError, UnicodeError, IndexError) as error:
        kind = kind_of_stream(io.BytesIO(data))
        received, advice = (str(error)[:100], "") if kind is ONNX else (kind.name, kind.advice)
        raise broken(where, "an ONNX model", received, advice) from None
    with own_errors(lambda expected, received: broken(where, expected, received), "an ONNX model"):
        return graph_of(model, path.parent, where, budget, walk.raw_data), budget


def graph_of(
    model: Any,
    folder: Path,
    where: str,
    budget: Budget,
    raw_data: Sequence[Buffer] | None = None,
) -> FileGraph:
    """Return the graph of a ``ModelProto`` whose external arrays are in ``folder``.

    If ``raw_data`` is not None, the arrays of the model have indices into it in place of bytes.
    """
    return _Reader(model, folder, where, budget, raw_data).graph


def broken(where: str, expected: str, received: str, advice: str = "") -> FileFormatError:
    """Return the error for a file that is damaged or violates the ONNX specification."""
    return FileFormatError(
        where, expected=expected, received=received, advice=advice or "export the model again"
    )


def _forged(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="the file is forged or damaged; if you trust it, pass max_bytes=...",
    )


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number of more than ten bytes")


def _cost(described: Any, size: int) -> int:
    """Return the bytes that parsing a field of ``size`` bytes takes; None is one number."""
    if described is None:
        return 16
    if described.type == FieldDescriptor.TYPE_MESSAGE:
        return _PER_MESSAGE
    if described.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
        return _PER_TEXT + size
    if described.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return 2 * size
    # A packed number of one byte becomes eight bytes, and the array another eight.
    return 8 * size + (1 << 6)


class _MessageWalk:
    """A walk over the messages of a file before they are parsed.

    It spends the bytes that parsing will take: a message of two bytes takes a hundred. The bytes of
    arrays are not parsed, since that would copy them: `raw_data` has views of them.
    """

    def __init__(self, data: memoryview, budget: Budget, where: str) -> None:
        self._data, self._budget, self._where = data, budget, where
        self._nbytes = self._parts = 0
        self.raw_data: list[memoryview] = []

    def without_arrays(self) -> bytes:
        """Return the model with indices into `raw_data` in place of the bytes of arrays."""
        made = self._message(ModelProto.DESCRIPTOR, 0, len(self._data), 0)
        self._budget.spend(self._nbytes, self._parts)
        return bytes(self._data) if made is None else made

    def _message(self, kind: Any, at: int, end: int, depth: int) -> bytes | None:
        """Return the message without the bytes of arrays, None if it has none."""
        if depth > _DEEPEST:
            raise _forged(self._where, f"at most {_DEEPEST} levels inside each other", "more")
        data, kept, copied = self._data, list[Buffer](), at
        while at < end:
            tag, length = _varint(data, at)
            wire, start = tag & 7, length
            described = kind.fields_by_number.get(tag >> 3)
            if wire == 2:
                size, start = _varint(data, length)
                after = start + size
            elif wire == 0:
                _, after = _varint(data, length)
            elif wire in (1, 5):
                after = length + (8 if wire == 1 else 4)
            else:
                raise DecodeError(f"wire type {wire}")
            if after > end:
                raise DecodeError("a field that is longer than its message")
            self._spend(_cost(described if wire == 2 else None, after - length))
            made = None
            if wire == 2 and described and described.type == FieldDescriptor.TYPE_MESSAGE:
                made = self._message(described.message_type, start, after, depth + 1)
            elif wire == 2 and described is _RAW_DATA:
                made = len(self.raw_data).to_bytes(_INDEX, "little")
                self.raw_data.append(data[start:after])
            if made is not None:
                kept += [data[copied:length], _varint_of(len(made)), made]
                copied = after
            at = after
        if not kept:
            return None
        return b"".join([*kept, data[copied:end]])

    def _spend(self, nbytes: int) -> None:
        self._nbytes, self._parts = self._nbytes + nbytes, self._parts + 1
        if self._parts >= _TOGETHER:
            self._budget.spend(self._nbytes, self._parts)
            self._nbytes = self._parts = 0


_RAW_DATA = TensorProto.DESCRIPTOR.fields_by_name["raw_data"]
_INDEX = 8
"""Bytes of an index in place of an array's bytes."""


def _varint_of(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


class _Reader:
    """A reader of a model's messages."""

    def __init__(
        self,
        model: Any,
        folder: Path,
        where: str,
        budget: Budget,
        raw_data: Sequence[Buffer] | None,
    ) -> None:
        self.folder, self.where, self.budget, self._raw_data = folder, where, budget, raw_data
        self.opsets = self._opsets(model.opset_import)
        self.functions: dict[tuple[str, str], Any] = {}
        self.inner: dict[tuple[str, str], dict[str, int]] = {}
        for function in model.functions:
            key = (function.domain, function.name)
            if key in self.functions:
                raise broken(where, "functions of different names", repr(key)[:80])
            self.functions[key] = function
        self.fresh = 0
        self.graph = self.read_graph(model.graph, {})

    def _opsets(self, imports: Any) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in imports:
            domain = "" if entry.domain in _OURS else entry.domain
            if found.get(domain, entry.version) != entry.version:
                raise broken(self.where, "one version of a set of operators", f"two of {domain!r}")
            found[domain] = entry.version
        if not _OLDEST <= found.get("", NEWEST) <= NEWEST:
            raise broken(
                self.where,
                f"operators of a version from {_OLDEST} to {NEWEST}",
                f"{found['']}",
                f"export the model with opset_version={min(NEWEST, 18)}",
            )
        return found

    def read_graph(self, message: Any, scope: dict[str, str]) -> FileGraph:
        """Return the graph of ``message``; ``scope`` maps the names of enclosing graphs."""
        if message.sparse_initializer:
            raise broken(self.where, "dense arrays", "sparse initializers")
        arrays: dict[str, Array] = {}
        for tensor in message.initializer:
            if not tensor.name or tensor.name in arrays:
                raise broken(self.where, "arrays of different names", repr(tensor.name)[:80])
            arrays[tensor.name] = self._array(tensor)
        ports = [self._port(info) for info in message.input if info.name not in arrays]
        graph = FileGraph(ports, [info.name for info in message.output], [], arrays)
        self._add_nodes(graph, message.node, dict(scope), {}, self.opsets)
        known = {port.name for port in ports} | arrays.keys() | set(scope)
        _sort(graph, known, self.where)
        known |= {name for node in graph.nodes for name in node.outputs}
        for name in graph.outputs:
            if name not in known:
                raise broken(self.where, "outputs computed by a node", repr(name)[:80])
        return graph

    def _port(self, info: Any) -> Port:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or tensor.elem_type not in DTYPES:
            raise broken(
                f"{self.where}, input {info.name[:60]!r}",
                "an array of numbers",
                f"type {tensor.elem_type or 'unknown'}",
            )
        shape: tuple[int | str, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(
                dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param
                for dim in tensor.shape.dim
            )
        return Port(info.name, DTYPES[tensor.elem_type], shape)

    def _add_nodes(
        self,
        graph: FileGraph,
        messages: Any,
        names: dict[str, str],
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        prefix: str = "",
    ) -> None:
        """Add the nodes, with local functions inlined.

        ``names`` maps inner to outer names, ``given`` are the attributes of a function's call.
        """
        for message in messages:
            self.budget.spend(1 << 9)
            if prefix:
                self.budget.spend(self._node_copied(message))
            domain = "" if message.domain in _OURS else message.domain
            inputs = tuple(names.get(name, prefix + name) if name else "" for name in message.input)
            for name in message.output:
                names[name] = names.get(name, prefix + name)
            outputs = tuple(names[name] if name else "" for name in message.output)
            attributes = self._attributes(message, given, graph, names)
            function = self.functions.get((message.domain, message.op_type))
            if function is not None:
                self._inline(graph, function, inputs, outputs, attributes)
                continue
            op = f"{domain}.{message.op_type}" if domain else message.op_type
            node = FileNode(op, message.name, inputs, outputs, attributes, opsets.get(domain, 1))
            if op == "Constant" and len(outputs) == 1:
                graph.arrays[outputs[0]] = self._constant(node)
            else:
                graph.nodes.append(node)

    def _inline(
        self, graph: FileGraph, function: Any, inputs: Any, outputs: Any, attributes: dict[str, Any]
    ) -> None:
        self.fresh += 1
        names = dict.fromkeys(function.input, "") | dict(zip(function.input, inputs, strict=False))
        names |= zip(function.output, outputs, strict=False)
        formals = len(function.input) + len(function.output)
        self.budget.spend(64 * formals + sum(map(self._copied, function.attribute_proto)))
        defaults = {a.name: self._value(a, graph, {}) for a in function.attribute_proto}
        key = (function.domain, function.name)
        if key not in self.inner:
            self.inner[key] = self._opsets(function.opset_import)
        inner = self.inner[key]
        with self.budget.deeper(_NESTED):
            prefix = f"{function.name[:40]}.{self.fresh}."
            self._add_nodes(graph, function.node, names, defaults | attributes, inner, prefix)

    def _attributes(
        self, message: Any, given: Mapping[str, Any], graph: FileGraph, names: dict[str, str]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in message.attribute:
            if attribute.name in found:
                raise broken(self.where, "attributes of different names", attribute.name[:60])
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in given:
                    found[attribute.name] = given[attribute.ref_attr_name]
            else:
                found[attribute.name] = self._value(attribute, graph, names)
        return found

    def _value(self, attribute: Any, graph: FileGraph, names: dict[str, str]) -> Any:
        kinds, kind = AttributeProto.AttributeType, attribute.type
        if kind == kinds.TENSOR:
            return self._array(attribute.t)
        if kind == kinds.GRAPH:
            with self.budget.deeper(_NESTED):
                outside = {name: name for node in graph.nodes for name in node.outputs}
                outside |= {name: name for name in graph.arrays}
                outside |= {port.name: port.name for port in graph.inputs}
                self.budget.spend(8 * (len(outside) + len(names)))
                return self.read_graph(attribute.g, outside | names)
        plain: dict[int, Callable[[], Any]] = {
            kinds.FLOAT: lambda: float(attribute.f),
            kinds.INT: lambda: int(attribute.i),
            kinds.STRING: lambda: attribute.s.decode("utf-8", "replace"),
            kinds.FLOATS: lambda: [float(value) for value in attribute.floats],
            kinds.INTS: lambda: [int(value) for value in attribute.ints],
            kinds.STRINGS: lambda: [
                value.decode("utf-8", "replace") for value in attribute.strings
            ],
        }
        if kind not in plain:
            raise broken(
                f"{self.where}, attribute {attribute.name[:60]!r}",
                "a number, a string, an array or lists of these",
                f"type {kind}",
            )
        return plain[kind]()

    def _constant(self, node: FileNode) -> Array:
        plain: dict[str, Any] = {
            "value_float": np.float32,
            "value_floats": np.float32,
            "value_int": np.int64,
            "value_ints": np.int64,
        }
        for key, value in node.attributes.items():
            if key == "value" and isinstance(value, np.ndarray):
                return value
            if key in plain:
                return np.asarray(value, plain[key])
        raise broken(
            f"{self.where}, node {node.name[:60]!r}", "a Constant of numbers", str(node)[:80]
        )

    def _array(self, tensor: Any) -> Array:
        return array_of(tensor, self._bytes_of(tensor), self.folder, self.where, self.budget)

    def _bytes_of(self, tensor: Any) -> Buffer:
        """Return the bytes of an array, empty if the tensor has none."""
        found: bytes = tensor.raw_data
        if self._raw_data is None or not tensor.HasField("raw_data"):
            return found
        return self._raw_data[int.from_bytes(found, "little")]

    def _copied(self, attribute: Any) -> int:
        """Return the bytes of an attribute of a function, which each call copies."""
        # A number of one byte becomes an object in a list.
        times = 2 if attribute.HasField("t") and attribute.t.HasField("raw_data") else 32
        return times * (int(attribute.ByteSize()) + len(self._bytes_of(attribute.t)))

    def _node_copied(self, message: Any) -> int:
        """Return the bytes of a node of a function, which each call copies."""
        inside = sum(self._copied(attribute) for attribute in message.attribute)
        names = (*message.input, *message.output, message.name, message.op_type)
        return inside + sum(_PER_TEXT + 4 * len(name) for name in names)


def _sort(graph: FileGraph, known: set[str], where: str) -> None:
    """Sort the nodes topologically, by Kahn's algorithm."""
    makers: dict[str, int] = {}
    for k, node in enumerate(graph.nodes):
        for name in filter(None, node.outputs):
            if name in makers or name in known:
                raise broken(where, "each array made once", f"{name[:60]!r} twice")
            makers[name] = k
    missing: list[int] = []
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for k, node in enumerate(graph.nodes):
        needed = {makers[name] for name in _read_by(node) if name in makers}
        unknown = [n for n in _read_by(node) if n and n not in makers and n not in known]
        if unknown:
            raise broken(
                f"{where}, node {node.name[:60]!r}", "inputs that exist", repr(unknown[0])[:80]
            )
        missing.append(len(needed))
        for maker in needed:
            readers[maker].append(k)
    ready = [k for k in reversed(range(len(missing))) if not missing[k]]
    ordered: list[FileNode] = []
    while ready:
        k = ready.pop()
        ordered.append(graph.nodes[k])
        for reader in reversed(readers[k]):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(ordered) < len(graph.nodes):
        raise broken(where, "a graph without cycles", "a cycle")
    graph.nodes = ordered


def _read_by(node: FileNode) -> list[str]:
    """Return the names that a node reads, including nested graphs."""
    found = list(node.inputs)
    for value in node.attributes.values():
        if isinstance(value, FileGraph):
            own = value.arrays.keys() | {port.name for port in value.inputs}
            own |= {name for inner in value.nodes for name in inner.outputs}
            reads = [name for inner in value.nodes for name in _read_by(inner)]
            found += [name for name in [*reads, *value.outputs] if name not in own]
    return found


class GraphInputs:
    """The inputs of a graph, with the batch along one axis of each, or without a batch.

    One symbolic size in the file, by its name, is the free sequence length.
    """

    def __init__(self, sheet: Sheet, where: str, batch_axis: int | None) -> None:
        self._sheet, self._where, self._batch_axis = sheet, where, batch_axis
        self._batch: int | str | None = None
        self._steps: int | str | None = None

    def draw(self, port: Port, given: Shape | None) -> None:
        """Add an `Input` for ``port``, of the sample shape ``given`` or the file's."""
        shape = port.shape
        where = f"{self._where}, input {port.name[:60]!r}"
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
                self._sheet.fixed_batch = count
        sample = tuple(self._extent(size) for size in declared) if given is None else tuple(given)
        known = [size for size in sample if size is not None]
        if len(sample) - len(known) > 1 or not all(isinstance(n, int) and n > 0 for n in known):
            raise FileFormatError(
                where,
                expected="known sizes of all axes except the batch and one time axis",
                received=str(shape)[:120],
                advice=f"pass shapes={{{port.name[:60]!r}: (...)}}, without the batch axis",
            )
        if None in sample:
            self._sheet.open.append(port.name)
        whole = port.dtype.kind in "iub"
        name = self._sheet.names.take(port.name, as_written=True)
        symbol = layers.Input(name, sample, port.dtype.name if whole else None)
        self._sheet.inputs.append(symbol)
        self._sheet.values[port.name] = Tensor(symbol, port.dtype, axis, whole=whole)

    def _extent(self, declared: int | str) -> int | None:
        """Return a size; None for the free time axis, 0 for other unknown sizes."""
        if isinstance(declared, int):
            return declared
        if self._steps is None:
            self._steps = declared
        return None if declared and declared == self._steps else 0

    def _samples_along(self, declared: list[int | str]) -> int | None:
        """Return the batch axis of an input: the axis named like the first input's.

        Without names it is the only free axis, if the first input's is free.
        """
        if self._batch_axis is None or not declared:
            return None
        axis = min(self._batch_axis, len(declared) - 1)
        if self._batch is None:
            self._batch = declared[axis]
        if isinstance(self._batch, str):
            free = [k for k, size in enumerate(declared) if isinstance(size, str)]
            if self._batch and self._batch in declared:
                return declared.index(self._batch)
            if len(free) == 1 and not declared[free[0]]:
                return free[0]
        return axis


def outputs(sheet: Sheet, where: str, names: Sequence[str]) -> list[Symbol]:
    """Return the symbols of the graph's outputs, each a node of its own. Errors: constants."""
    found: list[Symbol] = []
    for name in names:
        value = sheet.values[name]
        tensor = value if isinstance(value, Tensor) else _constant(sheet, where, name, value)
        found.append(tensor.symbol)
    # Each output of a net is a node. A `Dummy` is appended to an input, to a repeated symbol, to an
    # output of a layer with several, and to an output whose name differs from the file's.
    seen: set[Symbol] = set()
    ends = []
    for name, symbol in zip(names, found, strict=True):
        layer = symbol.call.layer
        one_of_several = isinstance(layer, layers.Layer) and isinstance(layer.out_shapes, list)
        other_name = len(names) > 1 and layer.name != name
        one_of_many = symbol in seen or one_of_several or other_name
        passed_on = one_of_many or not symbol.call.inputs
        seen.add(symbol)
        ends.append(
            layers.Dummy(sheet.names.take(name, as_written=True))(symbol) if passed_on else symbol
        )
    return ends


def _constant(sheet: Sheet, where: str, name: str, value: Known) -> Tensor:
    if not sheet.inputs or not value.constant:
        raise FileFormatError(
            f"{where}, output {name[:60]!r}",
            expected="an array that depends on an input",
            received="a constant",
            advice="remove it from the model's outputs",
        )
    node = sheet.makers.get(name) or FileNode("Constant", name, (), (name,), {}, 1)
    return Use(sheet, node).constant(value, value.array, None)
