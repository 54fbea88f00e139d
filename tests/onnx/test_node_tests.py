from pathlib import Path

import pytest

pytest.importorskip("onnx")

from singanet.onnx.onnx_pb2 import ModelProto
from tests.onnx import node_tests
from tests.onnx.runtime import onnx

GUIDE = Path(__file__).parents[2] / "docs" / "onnx.md"


def test_operators_that_are_taken_do_what_they_should_and_the_guide_says_which():
    counts, left_out, wrong = node_tests.count()
    assert not wrong
    if node_tests.table(counts, left_out) not in GUIDE.read_text("utf-8"):
        pytest.fail(
            "the table of docs/onnx.md is another: put in its place what "
            "`python -m tests.onnx.node_tests` prints",
            pytrace=False,
        )


def test_files_are_those_of_the_onnx_package_beside_which_it_is_loaded():
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-operator"
    files = sorted(folder.rglob("*.onnx"))
    assert len(files) > 30
    for file in files:
        written = ModelProto.FromString(file.read_bytes()).SerializeToString()
        assert onnx.load_from_string(written) == onnx.load(file)
