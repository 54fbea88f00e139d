"""Files that lie, of the onnx project's own list of attacks and others."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from singanet.base import heap
from singanet.errors import FileAccessError, FileFormatError, SingaNetError, UnsafeFileError
from singanet.onnx import load
from singanet.onnx.onnx_pb2 import ModelProto, TensorProto
from singanet.onnx.read import read
from tests.kit.files import varint

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
    places = {"location": location, **more}
    data = [{"key": key, "value": value} for key, value in places.items()]
    return model(float_data=[], data_location=1, external_data=data)


def test_a_whole_one_is_read(tmp_path):
    made = model()
    # Some exporters name a set of operators twice.
    made.opset_import.add(domain="ai.onnx", version=18)
    found = load(written(made, tmp_path)).forward(False, np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(found, [[3.0, 5.0, 7.0]])


@pytest.mark.parametrize(
    ("op", "shape"), [("MatMul", (1 << 10, 1 << 10)), ("Gemm", (1 << 10, 1 << 10)),
                      ("Add", (1, 1 << 20))]
)  # fmt: skip
def test_the_bytes_of_arrays_are_not_copied_by_reading_and_not_kept(op, shape, tmp_path):
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    made = model(dims=values.shape, raw_data=values.tobytes(), float_data=[])
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = shape[1]
    made.graph.node[0].op_type = op
    path = written(made, tmp_path)
    load(path)
    tracemalloc.start()
    graph, _ = read(path)
    assert tracemalloc.get_traced_memory()[1] < 0.3 * values.nbytes
    del graph
    net = load(path)
    # The parameter alone is left: what is mapped would change with the file.
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(tmp_path) not in maps.read_text()
    assert tracemalloc.get_traced_memory()[0] < 1.3 * values.nbytes
    tracemalloc.stop()
    (weight,) = net.param_values()
    np.testing.assert_array_equal(np.sort(weight.ravel()), np.sort(values.ravel()))


def test_a_file_system_without_maps_will_do(tmp_path, monkeypatch):
    def refused(*given, **more):
        raise OSError("no such device")

    monkeypatch.setattr(heap.mmap, "mmap", refused)
    array = np.arange(6, dtype="<f4")
    (tmp_path / "w.data").write_bytes(bytes(16) + array.tobytes())
    net = load(written(outside("w.data", offset="16", length="24"), tmp_path))
    np.testing.assert_array_equal(net["fc"].params["weight"].value.reshape(-1), array)


@pytest.mark.parametrize("nbytes", [0, 1, 5])
def test_as_many_bytes_are_mapped_as_asked(nbytes, tmp_path):
    path = tmp_path / "file"
    for content in (b"abcde"[:nbytes], b"abcde"):
        path.write_bytes(content)
        with path.open("rb") as stream:
            assert bytes(heap.mapped(stream, nbytes)) == content[:nbytes]


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
        {"dims": [1 << 20, 1 << 20]}, {"dims": [-3, -2]}, {"dims": [2, 1 << 62]},
        {"float_data": np.arange(5.0)}, {"raw_data": bytes(20), "float_data": []},
        {"float_data": [], "double_data": np.arange(6.0)},
        {"float_data": [], "int32_data": range(6), "data_type": 99},
        {"data_type": TensorProto.DataType.STRING}, {"data_type": TensorProto.DataType.COMPLEX64},
        {"segment": b"\x08\x01"},
    ],
)  # fmt: skip
def test_arrays_that_are_not_what_they_say(tensor, tmp_path):
    refused(model(**tensor), tmp_path)


def more_nodes(made, *nodes):
    for op, of, to in nodes:
        made.graph.node.add(op_type=op, name="loop", input=[of], output=[to])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: more_nodes(m, ("Relu", "z", "z2")), "inputs that exist"),
        (lambda m: more_nodes(m, ("Relu", "z", "z2"), ("Relu", "z2", "z")), "cycle"),
        (lambda m: more_nodes(m, ("Relu", "x", "y")), "made once"),
        (lambda m: m.graph.output.add(name="nobody"), "nobody"),
        (lambda m: m.graph.initializer.add(name="w", dims=[1], data_type=F, float_data=[1.0]),
         "different names"),
        (lambda m: m.graph.sparse_initializer.append(b""), "sparse"),
        (lambda m: m.opset_import.add(domain="ai.onnx", version=17), "one version"),
        (lambda m: m.opset_import[0].MergeFrom(type(m.opset_import[0])(version=99)),
         "opset_version"),
    ],
)  # fmt: skip
def test_graphs_that_cannot_be(change, why, tmp_path):
    made = model()
    change(made)
    refused(made, tmp_path, why)


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
    made, names = model(), [f"c{k}" for k in range(len(constants))]
    del made.graph.node[:]
    for name, values in zip(names, constants, strict=True):
        data = values if isinstance(values, list) else [values]
        more = {"data_type": TensorProto.DataType.INT64, "int64_data": data}
        dims = [len(values)] if isinstance(values, list) else []
        made.graph.initializer.add(name=name, dims=dims, **more)
    node = made.graph.node.add(op_type=op, input=[*inputs, *names], output=["y"])
    for name, value in attributes.items():
        whole = {"type": 7, "ints": value} if isinstance(value, list) else {"type": 2, "i": value}
        node.attribute.add(name=name, **whole)
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
    refused(whole + b"\x3a" + varint(len(empty)) + empty, tmp_path, error=UnsafeFileError)
    deep = b""
    for _ in range(300):  # attribute { g { node { attribute ...
        for tag in (0x32, 0x2A, 0x0A):
            deep = bytes([tag]) + varint(len(deep)) + deep
    refused(whole + b"\x3a" + varint(len(deep)) + deep, tmp_path)
    for cut in range(0, len(whole), 7):
        with pytest.raises(SingaNetError):
            load(written(whole[:cut] + b"\xff" * 9 + whole[cut:], tmp_path))
