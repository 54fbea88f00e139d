"""Files that lie, of the onnx project's own list of attacks and others."""

import os

import numpy as np
import pytest

from singanet.errors import FileAccessError, FileFormatError, SingaNetError, UnsafeFileError
from singanet.onnx import load
from singanet.onnx.onnx_pb2 import ModelProto, TensorProto

F = TensorProto.DataType.FLOAT


def model(**tensor):
    """A model of one dense layer, whose weight is ``tensor``."""
    made = ModelProto(ir_version=8)
    made.opset_import.add(domain="", version=18)
    made.graph.name = "g"
    port = made.graph.input.add(name="x")
    port.type.tensor_type.elem_type = F
    port.type.tensor_type.shape.dim.add(dim_param="N")
    port.type.tensor_type.shape.dim.add(dim_value=2)
    made.graph.output.add(name="y")
    made.graph.node.add(op_type="MatMul", name="fc", input=["x", "w"], output=["y"])
    usual = {"dims": [2, 3], "data_type": F, "float_data": np.arange(6.0)}
    made.graph.initializer.add(name="w", **{**usual, **tensor})
    return made


def written(made, folder):
    path = folder / "net.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


def refused(made, folder, match=None, error=FileFormatError):
    with pytest.raises(error, match=match):
        load(written(made, folder))


def outside(location, **more):
    tensor = {"float_data": [], "data_location": 1}
    tensor["external_data"] = [
        {"key": key, "value": value} for key, value in {"location": location, **more}.items()
    ]
    return model(**tensor)


def test_a_whole_one_is_read(tmp_path):
    net = load(written(model(), tmp_path))
    np.testing.assert_array_equal(
        net.forward(False, np.ones((1, 2), np.float32)), [[3.0, 5.0, 7.0]]
    )


def test_arrays_beside_it_are_read_and_none_elsewhere(tmp_path):
    array = np.arange(6, dtype="<f4")
    inner = tmp_path / "inside"
    inner.mkdir()
    (inner / "w.data").write_bytes(bytes(16) + array.tobytes())
    (tmp_path / "secret").write_bytes(array.tobytes())
    net = load(written(outside("w.data", offset="16", length="24"), inner))
    np.testing.assert_array_equal(net["fc"].params["weight"].value.reshape(-1), array)
    (inner / "link").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", inner / "hard")
    (inner / "dir").mkdir()
    for location in ("../secret", "a/../../secret", str(tmp_path / "secret"), "", "..", "link",
                     "hard", "/dev/zero", "dir", "a\\..\\..\\secret", "c:secret"):  # fmt: skip
        refused(outside(location), inner, error=(UnsafeFileError, FileAccessError))
    refused(outside("nowhere"), inner, error=FileAccessError)
    for more in ({"offset": "40"}, {"offset": "-1"}, {"length": "8"}, {"length": "9" * 30},
                 {"offset": "one"}):  # fmt: skip
        refused(outside("w.data", **more), inner)


@pytest.mark.parametrize(
    "tensor",
    [
        {"dims": [1 << 20, 1 << 20]},
        {"dims": [-3, -2]},
        {"dims": [2, 1 << 62]},
        {"float_data": np.arange(5.0)},
        {"raw_data": bytes(20), "float_data": []},
        {"float_data": [], "double_data": np.arange(6.0)},
        {"float_data": [], "int32_data": range(6), "data_type": 99},
        {"data_type": TensorProto.DataType.STRING},
        {"data_type": TensorProto.DataType.COMPLEX64},
        {"segment": b"\x08\x01"},
    ],
)
def test_arrays_that_are_not_what_they_say(tensor, tmp_path):
    refused(model(**tensor), tmp_path)


def test_graphs_that_cannot_be(tmp_path):
    made = model()
    made.graph.node.add(op_type="Relu", name="loop", input=["z"], output=["z2"])
    refused(made, tmp_path, "inputs that exist")
    made.graph.node.add(op_type="Relu", input=["z2"], output=["z"])
    refused(made, tmp_path, "cycle")
    made = model()
    made.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    refused(made, tmp_path, "made once")
    made = model()
    made.graph.output.add(name="nobody")
    refused(made, tmp_path, "nobody")
    made = model()
    made.graph.initializer.add(name="w", dims=[1], data_type=F, float_data=[1.0])
    refused(made, tmp_path, "different names")
    made = model()
    made.graph.sparse_initializer.append(b"")
    refused(made, tmp_path, "sparse")
    made = model()
    made.opset_import.add(domain="ai.onnx", version=18)
    refused(made, tmp_path, "one version")
    made = model()
    made.opset_import[0].version = 99
    refused(made, tmp_path, "opset_version")


def test_functions_that_call_themselves_or_double(tmp_path):
    made = model()
    function = made.functions.add(domain="own", name="F", input=["a"], output=["b"])
    function.opset_import.add(domain="", version=18)
    function.node.add(op_type="F", domain="own", input=["a"], output=["b"])
    made.opset_import.add(domain="own", version=1)
    made.graph.node.add(op_type="F", domain="own", input=["y"], output=["z"])
    refused(made, tmp_path, error=UnsafeFileError)


def node_of(op, *inputs, constants=(), **attributes):
    """A model of one node behind the input; ``constants`` are arrays of int64."""
    made = model()
    del made.graph.node[:]
    names = []
    for k, values in enumerate(constants):
        dims = [len(values)] if isinstance(values, list) else []
        data = values if isinstance(values, list) else [values]
        names.append(f"c{k}")
        kind = TensorProto.DataType.INT64
        made.graph.initializer.add(name=f"c{k}", dims=dims, data_type=kind, int64_data=data)
    node = made.graph.node.add(op_type=op, input=[*inputs, *names], output=["y"])
    for name, value in attributes.items():
        if isinstance(value, list):
            node.attribute.add(name=name, type=7, ints=value)
        else:
            node.attribute.add(name=name, type=2, i=value)
    return made


@pytest.mark.parametrize(
    "made",
    [
        lambda: node_of("ConstantOfShape", constants=[[1 << 40]]),
        lambda: node_of("ConstantOfShape", constants=[[1 << 31, 1 << 31, 4]]),
        lambda: node_of("Tile", "x", constants=[[1, 1 << 40]]),
        lambda: node_of("Range", constants=[0, 1 << 40, 1]),
        lambda: node_of("Range", constants=[0, 9, 0]),
        lambda: node_of("Expand", "x", constants=[[1 << 40, 1 << 40, 1, 2]]),
        lambda: node_of("Reshape", "x", constants=[[1 << 62, 0]]),
        lambda: node_of("Slice", "x", constants=[[0], [1], [7]]),
        lambda: node_of("Gather", "x", constants=[[1 << 40]], axis=1),
        lambda: node_of("Transpose", "x", perm=[1, 1]),
        lambda: node_of("Conv", "x", "w", group=0),
        lambda: node_of("Conv", "x", "w", strides=[0, 0]),
        lambda: node_of("MaxPool", "x", kernel_shape=[1 << 40]),
        lambda: node_of("Concat", "x", axis=1 << 40),
        lambda: node_of("Softmax", "x", axis=9),
        lambda: node_of("Relu"),
        lambda: node_of("LSTM", "x", "w", "w", hidden_size=-1),
    ],
)  # fmt: skip
def test_operators_that_ask_for_too_much_or_make_no_sense(made, tmp_path):
    refused(made(), tmp_path)


@pytest.mark.full
def test_small_files_that_would_be_large(tmp_path):
    whole = model().SerializeToString()
    # Millions of empty messages of two bytes each: graph { node {} node {} ... }.
    empty = b"\x0a\x00" * 2_000_000
    size, header = len(empty), bytearray(b"\x3a")
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    refused(whole + bytes(header) + bytes([size]) + empty, tmp_path, error=UnsafeFileError)
    deep = b""
    for _ in range(300):  # attribute { g { node { attribute ...
        for tag in (0x32, 0x2A, 0x0A):
            deep = bytes([tag, *_varint(len(deep))]) + deep
    refused(whole + b"\x3a" + bytes(_varint(len(deep))) + deep, tmp_path)
    for cut in range(0, len(whole), 7):
        with pytest.raises(SingaNetError):
            load(written(whole[:cut] + b"\xff" * 9 + whole[cut:], tmp_path))


def _varint(number):
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
