from __future__ import annotations

from pathlib import Path

import pytest

import singanet
from singanet.checkpoint import core_pb2
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.onnx import onnx_pb2
from singanet.saving import net_pb2


@pytest.mark.parametrize(
    ("schema", "generated"),
    [("checkpoint/core", core_pb2), ("saving/net", net_pb2), ("onnx/onnx", onnx_pb2)],
)
def test_the_generated_code_is_that_of_the_schema(schema, generated, tmp_path):
    protoc = pytest.importorskip(
        "grpc_tools.protoc", reason="generates from the schema: pip install grpcio-tools"
    )
    root = Path(singanet.__file__).parent.parent
    out = tmp_path / "schema.desc"
    arguments = [
        "protoc",
        f"-I{root}",
        f"--descriptor_set_out={out}",
        str(root / f"singanet/{schema}.proto"),
    ]
    assert protoc.main(arguments) == 0
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    ours = descriptor_pb2.FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb)
    # json_name is filled in by one way of compiling only.
    messages = list(compiled.message_type)
    for message in messages:
        messages += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    assert ours == compiled


@pytest.mark.parametrize(
    ("name", "number", "packed"),
    [
        ("shape", 1, False),
        ("data_type", 2, False),
        ("stride", 3, False),
        ("float_data", 4, True),
        ("double_data", 5, True),
        ("int_data", 6, True),
        ("bytes_data", 7, False),
    ],
)
def test_the_fields_are_singas(name, number, packed):
    field = TensorProto.DESCRIPTOR.fields_by_name[name]
    assert field.number == number
    assert field.GetOptions().packed == packed


def test_what_we_add_is_far_from_what_singa_may_add():
    added = [field.number for field in TensorProto.DESCRIPTOR.fields if field.number > 7]
    assert added
    assert min(added) > 1000


def test_the_data_types_are_singas():
    assert dict(core_pb2.DataType.items()) == {
        "kFloat32": 0,
        "kFloat16": 1,
        "kInt": 2,
        "kChar": 3,
        "kDouble": 4,
        "kUChar": 5,
    }
