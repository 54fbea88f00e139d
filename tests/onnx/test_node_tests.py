from pathlib import Path

import pytest

pytest.importorskip("onnx")

from tests.onnx import node_tests

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
