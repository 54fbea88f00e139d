from pathlib import Path

import pytest

from singanet.onnx.onnx_pb2 import ModelProto

onnx = pytest.importorskip("onnx")


def test_files_are_those_of_the_onnx_package_beside_which_it_is_loaded():
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-operator"
    files = sorted(folder.rglob("*.onnx"))
    assert len(files) > 30
    for file in files:
        written = ModelProto.FromString(file.read_bytes()).SerializeToString()
        assert onnx.load_from_string(written) == onnx.load(file)
