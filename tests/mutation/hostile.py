"""Files that ask for far more than they hold, made by hand: yields (name, suffix, bytes).

Each is to be refused or read as those of `kinds` are: own errors, in bounds of time and memory.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np

from singanet.onnx.onnx_pb2 import AttributeProto, ModelProto, TensorProto
from tests.kit.files import gguf_file, gguf_tensor

SIZES = (1 << 20, 1 << 22, 1 << 24, 1 << 29, 1 << 32, 1 << 40)


def onnx_model(extent=4):
    """A model that adds ``x`` and what `add` puts between."""
    made = ModelProto(ir_version=8)
    made.opset_import.add(domain="", version=18)
    for name, ports in (("x", made.graph.input), ("y", made.graph.output)):
        tensor = ports.add(name=name).type.tensor_type
        tensor.elem_type = TensorProto.FLOAT
        tensor.shape.dim.add(dim_param="N")
        tensor.shape.dim.add(dim_value=extent)
    return made


def add(made, op, inputs, output, **attributes):
    """One more node."""
    node = made.graph.node.add(op_type=op, input=inputs, output=[output])
    for name, value in attributes.items():
        put(node.attribute.add(name=name), value)
    return node


def put(attribute, value):
    if isinstance(value, int):
        attribute.type, attribute.i = AttributeProto.INT, value
    elif isinstance(value, bytes):
        attribute.type, attribute.s = AttributeProto.STRING, value
    elif isinstance(value, list):
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(value)
    elif isinstance(value, TensorProto):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(value)
    else:
        attribute.type = AttributeProto.GRAPH
        attribute.g.CopyFrom(value)


def const(made, name, values, dtype=np.int64):
    """An array of the file."""
    kind = {np.int64: TensorProto.INT64, np.float32: TensorProto.FLOAT}[dtype]
    array = np.asarray(values, dtype)
    raw = array.tobytes()
    made.graph.initializer.add(name=name, dims=array.shape, data_type=kind, raw_data=raw)


UNARY = (
    "Neg", "Tanh", "Relu", "Clip", "NonZero", "ReduceMax", "ReduceSum", "ReduceMean", "Dropout",
    "Abs", "Exp", "Not", "IsNaN", "Identity", "Transpose", "Flatten", "Squeeze", "Shape",
    "Size", "Sigmoid", "Softmax", "CumSum", "TopK", "Erf",
)  # fmt: skip
BINARY = ("Mod", "Add", "Mul", "Pow", "Max", "Where", "Equal", "CastLike", "MatMul", "Gather")
INTO_X = ("Add", "Gather", "Concat", "MatMul", "Where", "Reshape", "Expand", "Slice", "Tile", "Pad")


def onnx_views():
    """A view of so many elements, and an operator that would read it all."""
    for size in SIZES:
        for filled in ("ConstantOfShape", "Expand", "of the batch"):
            for op in (*UNARY, *BINARY, "Reshape", "Cast", "to x"):
                if filled == "ConstantOfShape" or size in (1 << 22, 1 << 32):
                    yield f"{filled} {size} {op}", partial_view(size, filled, op)
        for op in INTO_X:
            yield f"{op} of x and {size}", into_x(size, op)


def seen(made, size, filled):
    """The view ``v``."""
    if filled == "ConstantOfShape":
        const(made, "s", [size])
        add(made, "ConstantOfShape", ["s"], "v")
    elif filled == "Expand":
        const(made, "s", [size // 2, 2])
        const(made, "two", [1.0, 2.0], np.float32)
        add(made, "Expand", ["two", "s"], "v")
    else:
        const(made, "s", [size // 8])
        add(made, "Shape", ["x"], "d")
        add(made, "Mul", ["d", "s"], "e")
        add(made, "ConstantOfShape", ["e"], "v")


def partial_view(size, filled, op):
    made = onnx_model()
    seen(made, size, filled)
    if op == "Reshape":
        const(made, "flat", [-1])
        add(made, "Reshape", ["v", "flat"], "w")
    elif op == "Cast":
        add(made, "Cast", ["v"], "w", to=TensorProto.DOUBLE)
    elif op == "Where":
        add(made, "Equal", ["v", "v"], "same")
        add(made, "Where", ["same", "v", "v"], "w")
    elif op in BINARY:
        add(made, op, ["v", "v"], "w")
    else:
        add(made, "Identity" if op == "to x" else op, ["v"], "w")
    const(made, "zero", [0])
    if op != "to x":
        add(made, "ReduceMax", ["w"], "m", keepdims=0)
        add(made, "Cast", ["m"], "f", to=1)
        add(made, "Add", ["x", "f"], "y")
    else:
        add(made, "Add", ["x", "w"], "y")
    return made


def into_x(size, op):
    made = onnx_model()
    if op in ("Gather", "Reshape", "Expand", "Slice", "Tile", "Pad"):
        const(made, "s", [size])
        zero = TensorProto(dims=[1], data_type=TensorProto.INT64, raw_data=bytes(8))
        add(made, "ConstantOfShape", ["s"], "v", value=zero)
    else:
        seen(made, size, "ConstantOfShape")
    inputs = {"Slice": ["x", "v", "v"], "Where": ["x", "v", "v"]}.get(op, ["x", "v"])
    add(made, op, inputs, "y", **({"axis": 1} if op in ("Gather", "Concat") else {}))
    return made


def onnx_chains():
    """Constants of constants, each of which is kept."""
    for op in ("Tanh", "Relu", "Neg", "Add", "Cast", "Identity", "Transpose", "Dropout", "Mod"):
        for count, size in ((300, 1 << 18), (1500, 1 << 15)):
            made = onnx_model()
            const(made, "c0", np.zeros(size), np.float32)
            for k in range(count):
                given = [f"c{k}"] * (2 if op in ("Add", "Mod") else 1)
                more = {"to": 11 if k % 2 else 1} if op == "Cast" else {}
                more |= {"fmod": 1} if op == "Mod" else {}
                add(made, op, given, f"c{k + 1}", **more)
            add(made, "ReduceMax", [f"c{count}"], "m", keepdims=0)
            add(made, "Add", ["x", "m"], "y")
            yield f"{count} {op}", made


def onnx_functions():
    """Functions whose contents are large, and used often."""
    for what in ("ints", "default", "typed", "raw", "opsets", "formals", "name", "text", "inner"):
        for uses in (400, 2000):
            yield f"{uses} uses of a function with much in: {what}", used(what, uses)


def used(what, uses):
    made = onnx_model()
    made.opset_import.add(domain="own", version=1)
    name = "F" * (20_000 if what == "name" else 1)
    function = made.functions.add(domain="own", name=name, input=["a"], output=["b"])
    function.opset_import.add(domain="", version=18)
    node = function.node.add(op_type="Relu", input=["a"], output=["b"])
    typed = TensorProto(dims=[30_000], data_type=TensorProto.INT32, int32_data=[1] * 30_000)
    raw = TensorProto(dims=[30_000], data_type=TensorProto.INT8, raw_data=bytes(30_000))
    if what == "ints":
        put(node.attribute.add(name="axes"), [1] * 30_000)
    elif what == "default":
        put(function.attribute_proto.add(name="axes"), [1] * 30_000)
    elif what in ("typed", "raw"):
        put(node.attribute.add(name="value"), typed if what == "typed" else raw)
    elif what == "text":
        put(node.attribute.add(name="value"), b"a" * 30_000)
    elif what == "opsets":
        for k in range(5000):
            function.opset_import.add(domain=f"d{k}", version=1)
    elif what == "formals":
        function.input.extend(f"a{k}" for k in range(5000))
    elif what == "inner":
        for k in range(30):
            function.node.add(op_type="Relu", input=["a"], output=[f"{k}" * 500])
    for k in range(uses):
        made.graph.node.add(
            op_type=name, domain="own", input=[f"h{k}" if k else "x"], output=[f"h{k + 1}"]
        )
    made.graph.output[0].name = f"h{uses}"
    return made


def onnx_many():
    """What would take the square of its number."""
    for count in (1000, 3000):
        made = onnx_model()
        add(made, "Relu", ["x"], "y")
        del made.graph.output[:]
        made.graph.output.extend([onnx_model().graph.output[0]] * count)
        yield f"one output {count} times", made
        made = onnx_model()
        for k in range(count):
            add(made, "Relu", [f"h{k}" if k else "x"], f"h{k + 1}")
        made.graph.output[0].name = f"h{count}"
        yield f"a chain of {count}", made
        made = onnx_model()
        del made.graph.output[:]
        for k in range(count):
            add(made, "Relu", ["x"], f"h{'.' * k}").name = "same"
            made.graph.output.add(name=f"h{'.' * k}")
        yield f"{count} outputs whose names come to one", made


def onnx_nonsense():
    """Arithmetic on what is none, which ended in errors of Python's."""
    made = onnx_model()
    add(made, "Unsqueeze", ["x", "axes"], "u")
    const(made, "axes", [1, 1])
    add(made, "ReduceMax", ["u", "axes"], "y")
    yield "an axis twice", made
    for value in (onnx_model().graph, b"text", 3, [1, 2]):
        for op, key in (("ConstantOfShape", "value"), ("Constant", "value")):
            made = onnx_model()
            const(made, "s", [4])
            add(made, op, ["s"] if op != "Constant" else [], "v", **{key: value})
            add(made, "Add", ["x", "v"], "y")
            yield f"{op} of {type(value).__name__}", made
    made = onnx_model()
    add(made, "CastLike", ["x"], "y")
    yield "CastLike of one", made
    made = onnx_model()
    const(made, "n", [np.nan], np.float32)
    const(made, "i", [1])
    add(made, "CastLike", ["n", "i"], "w")
    add(made, "Cast", ["w"], "f", to=1)
    add(made, "Add", ["x", "f"], "y")
    yield "no number as a whole one", made
    for op in ("Conv", "Gemm", "LSTM", "Split", "Pad", "Resize", "Einsum", "OneHot", "Slice"):
        made = onnx_model()
        add(made, op, ["x", "x", "", "x"], "y", axis=1 << 40, kernel_shape=[0], group=1 << 40)
        yield f"{op} of x", made


def zipped(members, kind=zipfile.ZIP_DEFLATED):
    """A zip of ``members``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def bombs():
    """What is packed at a thousand to one, in every format that packs."""
    zeros = bytes(64 << 20)
    yield "byteorder", ".pt", zipped([("m/data.pkl", b"\x80\x02}."), ("m/byteorder", zeros)])
    yield "a program", ".pt", zipped([("m/data.pkl", zeros)])
    yield "a program of marks", ".pt", zipped([("m/data.pkl", b"\x80\x02" + b"(" * (8 << 20))])
    yield "a config", ".keras", zipped([("config.json", b" " * len(zeros))])
    yield "weights", ".keras", zipped([("config.json", b"{}"), ("model.weights.h5", zeros)])
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(struct.pack(">II", 0x00000801, 63 << 20) + zeros) + packer.flush()
    yield "bytes of idx", "-idx", packed
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar/data_batch_1")
        info.pax_headers = {"comment": "a" * (64 << 20)}
        archive.addfile(info)
    yield "a header", ".tar.gz", stream.getvalue()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for k in range(60_000):
            archive.addfile(tarfile.TarInfo(f"m{k}"))
    yield "empty members", ".tar.gz", stream.getvalue()


def nested():
    """Levels in levels."""
    for depth in (150, 1000, 100_000):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            text = opening * depth + b"1" + closing * depth
            yield f"{depth} levels in a config", ".keras", zipped([("config.json", text)])
            header = struct.pack("<Q", len(text)) + text
            yield f"{depth} levels in a header", ".safetensors", header
        yield f"{depth} lists", ".pickle", b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."
        yield f"{depth} tuples", ".pickle", b"\x80\x02)" + b"\x85" * depth + b"."
        yield f"{depth} levels of toml", ".toml", b"model = " + b"[" * depth + b"]" * depth


def doubled():
    """Lists and dicts that hold the one before twice."""
    for levels in (10, 20, 40):
        shared = {"a": np.zeros(1)}
        lists = [1]
        for _ in range(levels):
            shared, lists = {"a": shared, "b": shared}, [lists, lists]
        yield f"{levels} levels of dicts", ".pickle", pickle.dumps({"w": np.zeros(1), "d": shared})
        yield f"{levels} levels of lists", ".pickle", pickle.dumps({"w": np.zeros(1), "l": lists})
        for array in (False, True):
            inner = {"a": np.zeros(1) if array else 1}
            for _ in range(levels):
                inner = {"a": inner, "b": inner}
            program = pickle.dumps(inner, 2)
            yield f"{levels} levels of dicts, {array}", ".pt", zipped([("m/data.pkl", program)], 0)


def declared():
    """Sizes that nothing stands behind."""
    for size in (1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1):
        text = f'{{"a":{{"dtype":"F32","shape":[{size}],"data_offsets":[0,{4 * size}]}}}}'.encode()
        yield f"{size} floats", ".safetensors", struct.pack("<Q", len(text)) + text
        yield f"a header of {size}", ".safetensors", struct.pack("<Q", size) + b"{}"
        for kind in (0, 8):
            head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},), }}"
            member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
            yield f"{size} floats, {kind}", ".npz", zipped([("a.npy", member)], kind)
        idx = b"\0\0\x08\x04" + struct.pack(">IIII", *(min(size, 0xFFFFFFFF),) * 4)
        yield f"{size} bytes to the fourth", "-idx", idx
        yield f"{size} rows", "-idx", b"\0\0\x08\x01" + struct.pack(">I", min(size, 0xFFFFFFFF))
        raw = b"\x80\x04\x8e" + struct.pack("<Q", size) + b"a."
        yield f"bytes of {size}", ".pickle", raw
        yield f"bytes of {size}, as data", ".plain", raw
        yield (
            f"a long of {size}",
            ".pickle",
            b"\x80\x02\x8b" + struct.pack("<i", min(size, 2**31 - 1)),
        )
        yield (
            f"a memo at {size}",
            ".pickle",
            b"\x80\x02Nr" + struct.pack("<I", min(size, 2**32 - 1)) + b".",
        )


def ggufs():
    """Tables that claim much: values, texts, arrays, one place used by many."""
    for size in (1 << 20, 1 << 31, 1 << 40, (1 << 64) - 1):
        yield f"{size} arrays", gguf_file(count=size)
        yield f"{size} floats", gguf_file([gguf_tensor(axes=(size,))])
        yield f"{size} in blocks", gguf_file([gguf_tensor(axes=(256, size), code=12)])
        for code in (4, 7, 8, 9):
            told = struct.pack("<IQ", code, size)
            yield f"{size} values {code}", gguf_file(values=[("a", 9, told)])
        yield f"a text of {size}", gguf_file(values=[("a", 8, struct.pack("<Q", size))])
    for count in (1000, 1_000_000):
        for code, each in ((8, bytes(8)), (9, struct.pack("<IQ", 0, 0)), (7, b"\1")):
            told = struct.pack("<IQ", code, count) + each * count
            yield f"{count} small ones of {code}", gguf_file(values=[("a", 9, told)])
    same = [gguf_tensor(f"w{k}", (256, 64)) for k in range(5000)]
    yield "arrays at one place", gguf_file(same, data=bytes(65536))
    empty = [gguf_tensor(f"w{k}", (0, 1 << 40)) for k in range(50_000)]
    yield "empty arrays", gguf_file(empty)
    deep = struct.pack("<IQ", 9, 1) * 200_000
    yield "arrays in arrays", gguf_file(values=[("a", 9, deep)])
    split = [("split.count", 9, struct.pack("<IQ", 4, 2) + bytes(8))]
    yield "a number of parts that is none", gguf_file(values=split)


def indexes():
    """Indexes of files that are not there, or too many, or themselves."""
    for count in (500, 50_000):
        names = {f"w{k}": f"{k}.safetensors" for k in range(count)}
        yield f"{count} files", json.dumps({"weight_map": names}).encode()
    yield "itself", b'{"weight_map": {"w": "m.safetensors.index.json"}}'
    yield "one that is not there", b'{"weight_map": {"w": "../../m.bin"}}'
    yield "a long number", b'{"metadata": {"a": ' + b"9" * 5000 + b'}, "weight_map": {}}'
    for depth in (150, 100_000):
        yield f"{depth} levels", b'{"weight_map": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)


def files():
    """All of them: (name, kind, suffix, bytes)."""
    yield from graphs()
    yield from others()


def graphs():
    """Those of ONNX."""
    for maker in (onnx_nonsense, onnx_functions, onnx_many, onnx_chains, onnx_views):
        for name, made in maker():
            yield name, "onnx", ".onnx", made.SerializeToString()


def others():
    """Those of all other readers."""
    for suffix, maker in ((".gguf", ggufs), (".safetensors.index.json", indexes)):
        for name, raw in maker():
            yield name, "checkpoint", suffix, raw
    for maker in (bombs, nested, doubled, declared):
        for name, suffix, raw in maker():
            kind = {
                ".keras": "keras", "-idx": "data", ".tar.gz": "data", ".plain": "data",
                ".toml": "config",
            }.get(suffix, "checkpoint")  # fmt: skip
            yield name, kind, suffix, raw
