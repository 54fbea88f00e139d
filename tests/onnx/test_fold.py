"""Operators of constants are worked out as the onnx package's tests of single operators say."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from singanet.base.budget import Budget
from singanet.errors import SingaNetError
from singanet.onnx.fold import FOLDS, fold
from singanet.onnx.read import Node, graph_of
from singanet.onnx.values import Known, RefusedError
from singanet.schema.onnx_pb2 import ModelProto

pytest.importorskip("onnx")

from tests.onnx import node_tests

REFUSED = {"Cast": "numbers of 8 bits and more", "Split": "3 parts of 0"}
"""What is refused by name: types that NumPy has not, and parts without an element."""

NONE_OF_NONE = r"reduce_(max|min)_empty_set"
"""NumPy has no least element of none; the loader tells its ValueError as the file's."""


def of_constants(case):
    """The outputs of a case whose inputs are constants; None where they are none that are read."""
    data = case.model.SerializeToString()
    budget = Budget(1 << 26, partial(node_tests._forged, case.name))
    try:
        (node,) = graph_of(ModelProto.FromString(data), Path(), case.name, budget).nodes
    except SingaNetError:
        return None
    given = dict(zip([each.name for each in case.model.graph.input], case.inputs, strict=False))
    values = [Known.of(given[name], given[name]) if name else None for name in node.inputs]
    return [made.array for made in fold(node, values, budget)]


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape"])
def test_views_are_made_of_as_many_elements_as_memory_could_have_addresses(op):
    """They take no memory; 2**40 at most, of which every number of bytes can be counted."""

    def made(*shape):
        budget = Budget(1 << 20, partial(node_tests._forged, "constants"))
        given = [Known.of(array, array) for array in (np.zeros(1, np.float32), np.array(shape))]
        names = ["x", "shape"][-len(given) :]
        node = Node(op, "n", tuple(names), ("y",), {}, 18)
        return fold(node, given if op == "Expand" else given[1:], budget)[0].array

    assert made(1 << 20, 1 << 20).shape == (1 << 20, 1 << 20)
    for shape in ((1 << 20, 1 << 21), (1 << 40, 2)):
        with pytest.raises(RefusedError, match="an array that can be made"):
            made(*shape)


@pytest.mark.full
def test_operators_of_constants_give_what_they_should():
    seen, wrong = set(), []
    left_out = [*node_tests.LEFT_OUT, NONE_OF_NONE]
    for case in node_tests.cases():
        if case.op not in FOLDS or any(re.search(pattern, case.name) for pattern in left_out):
            continue
        try:
            made = of_constants(case)
        except RefusedError as error:
            if not re.search(REFUSED.get(case.op, "$^"), str(error)):
                wrong.append(f"{case.name}: {error}")
            continue
        if made is None:
            continue
        seen.add(case.op)
        for found, wanted in zip(made, map(np.asarray, case.outputs), strict=True):
            if (
                found.shape != wanted.shape
                or found.dtype != wanted.dtype
                or not np.allclose(found, wanted, case.rtol, case.atol, equal_nan=True)
            ):
                wrong.append(f"{case.name}: {found.dtype} {found.shape}")
    assert not wrong
    # Its tests are of a version that is not read.
    assert set(FOLDS) - seen == {"Not"}
