"""What operators make of constants, as the onnx package's tests and ONNX Runtime say."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from singanet.base.arguments import Budget
from singanet.errors import FileFormatError, ShapeError, SingaNetError, UnsafeFileError
from singanet.onnx import load
from singanet.onnx.fold import FOLDS, OF_CONSTANTS, computed, fold
from singanet.onnx.onnx_pb2 import ModelProto
from singanet.onnx.read import graph_of
from singanet.saving.codecs.onnx.use import Sheet
from singanet.saving.codecs.onnx.values import FileNode, Known, RefusedError
from tests.onnx import node_tests
from tests.onnx.runtime import file_of, node, ran

LAST = np.iinfo(np.int64).max

REFUSED = {
    "BatchNormalization": "training_mode",
    "Cast": "numeric type of at least 8 bits",
    "GatherElements": "two inputs of the net",
    "GatherND": "batch_dims",
    "ScatterElements": "without reduction",
    "ScatterND": "without reduction",
    "Split": "3 parts of 0",
    "Trilu": "array",
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare"),
        "at least one element",
    ),
}
"""What is refused by name: types that NumPy has not, sums of none, and what no layer does."""

LEFT_OUT = [*node_tests.LEFT_OUT, "bfloat16", r"reduce_(max|min)_empty_set"]
"""Types that NumPy has not; there is no least element of none."""


def known(*arrays):
    return [Known.of(array, array) for array in map(np.asarray, arrays)]


def made_of(node, values, budget):
    if node.op in FOLDS:
        return fold(node, values, budget)
    sheet = Sheet(budget)
    sheet.read(node.outputs)
    return computed(node, values, sheet)


def budget_of(size, name="constants"):
    return Budget(size, partial(node_tests._forged, name))


def node_of(op, count, **attributes):
    return FileNode(op, "n", tuple(f"x{k}" for k in range(count)), ("y",), attributes, 18)


def of_constants(case):
    """The outputs of a case whose inputs are constants; None where they are none that are read."""
    data = case.model.SerializeToString()
    budget = budget_of(1 << 26, case.name)
    try:
        (node,) = graph_of(ModelProto.FromString(data), Path(), case.name, budget).nodes
    except (SingaNetError, ValueError):
        return None
    given = dict(zip([each.name for each in case.model.graph.input], case.inputs, strict=False))
    values = [known(given[name])[0] if name else None for name in node.inputs]
    made = made_of(node, values, budget)
    return [each.array for name, each in zip(node.outputs, made, strict=False) if name]


@pytest.mark.full
def test_operators_of_constants_give_what_they_should():
    seen, wrong = set(), []
    for case in node_tests.cases():
        known_op = case.op in FOLDS or case.op in OF_CONSTANTS
        if not known_op or any(re.search(pattern, case.name) for pattern in LEFT_OUT):
            continue
        try:
            made = of_constants(case)
        except (RefusedError, SingaNetError) as error:
            if not re.search(REFUSED.get(case.op, "$^"), str(error)):
                wrong.append(f"{case.name}: {error}")
            continue
        if made is None:
            continue
        seen.add(case.op)
        for found, wanted in zip(made, map(np.asarray, case.outputs), strict=True):
            same = (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            if not same or not np.allclose(found, wanted, case.rtol, case.atol, equal_nan=True):
                wrong.append(f"{case.name}: {found.dtype} {found.shape}")
    assert not wrong
    # The first is refused, the tests of the others are of versions that are not read, or missing.
    untested = {"GatherElements", "GlobalLpPool", "Not", "ai.onnx.ml.Scaler"}
    assert {*FOLDS, *OF_CONSTANTS} - seen == untested


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape"])
def test_views_are_made_of_as_many_elements_as_memory_could_have_addresses(op):
    """They take no memory; 2**40 at most, of which every number of bytes can be counted."""

    def made(*shape):
        given = known(np.zeros(1, np.float32), shape)[-1 if op == "ConstantOfShape" else 0 :]
        return made_of(node_of(op, len(given)), given, budget_of(1 << 20))[0].array

    assert made(1 << 20, 1 << 20).shape == (1 << 20, 1 << 20)
    for shape in ((1 << 20, 1 << 21), (1 << 40, 2)):
        with pytest.raises(RefusedError, match="an array that fits in memory"):
            made(*shape)


@pytest.mark.parametrize(
    ("op", "formula"), [("Sub", np.subtract), ("Min", np.minimum), ("Equal", np.equal)]
)
def test_whole_numbers_are_exact_or_refused(op, formula):
    """Exporters write the largest for the end of an axis; floats have it, and not those near it."""
    a, b = np.array([2**53, -7, 3]), np.array([1, 5, -2])
    (made,) = made_of(node_of(op, 2), known(a, b), budget_of(0))
    np.testing.assert_array_equal(made.array, formula(a, b))
    (last,) = made_of(node_of("Min", 2), known([LAST, LAST], [LAST, 4]), budget_of(0))
    assert last.array.dtype == np.int64
    assert last.array.tolist() == [LAST, 4]
    with pytest.raises(RefusedError, match="integers of at most"):
        made_of(node_of(op, 2), known(a + 1, b), budget_of(0))
    with pytest.raises(RefusedError, match="NaN or infinity"):
        made_of(node_of("Div", 2), known(a, 0 * b), budget_of(0))


def test_arrays_of_no_elements_or_axes_and_what_depends_on_the_number_of_samples():
    (none,) = made_of(node_of("Equal", 2), known(np.zeros(0, np.int64), -1), budget_of(0))
    assert (none.array.dtype, none.array.shape) == (bool, (0,))
    (one,) = made_of(node_of("Mul", 2), known(np.int64(3), np.int64(4)), budget_of(0))
    assert (one.array.dtype, one.array.shape, one.array.item()) == (np.int64, (), 12)
    extents = Known.of(np.array([7, 4]), np.array([11, 4]))
    (made,) = made_of(node_of("Mul", 2), [extents, *known([2, 3])], budget_of(0))
    assert [each.tolist() for each in made.at] == [[14, 12], [22, 12]]


@pytest.mark.parametrize(
    ("op", "arrays", "more"),
    [
        ("Sigmoid", [np.broadcast_to(np.float32(1), (3000, 3000))], {}),
        ("Add", [np.zeros((3000, 1), np.float32), np.zeros((1, 3000), np.float32)], {}),
        ("MatMul", [np.zeros((1500, 1500), np.float32)] * 2, {}),
        ("OneHot", [np.zeros(1 << 12, np.int64), np.array(1 << 12), np.zeros(2, np.float32)], {}),
        ("Pad", [np.zeros(2, np.float32), np.array([1 << 40, 0])], {}),
    ],
)
def test_a_small_file_computes_no_large_arrays_and_no_long_products(op, arrays, more):
    refused = "bytes of memory|constants of at most|fewer than"
    with pytest.raises((UnsafeFileError, RefusedError, ShapeError), match=refused):
        made_of(node_of(op, len(arrays), **more), known(*arrays), budget_of(1 << 10))


GATES = {
    "Sigmoid": {}, "HardSigmoid": {"alpha": 0.25, "beta": 0.4}, "Softmax": {"axis": 0},
    "LeakyRelu": {"alpha": 0.3}, "Softplus": {}, "Erf": {}, "ReduceL2": {"keepdims": 1},
}  # fmt: skip


def test_a_large_array_of_the_file_is_scaled_and_a_view_is_not(monkeypatch):
    monkeypatch.setattr("singanet.onnx.fold.MOST", 4)
    large, two = np.arange(6, dtype=np.float32), np.float32(2)
    (made,) = made_of(node_of("Mul", 2), known(large, two), budget_of(1 << 20))
    np.testing.assert_array_equal(made.array, large * 2)
    view = np.broadcast_to(two, (6,))
    with pytest.raises(RefusedError, match="at most 4 elements"):
        made_of(node_of("Mul", 2), known(view, two), budget_of(1 << 20))


@pytest.mark.parametrize("op", GATES)
def test_a_function_of_a_constant_is_a_constant_of_the_net(op, tmp_path):
    rng = np.random.default_rng(0)
    x, gate, square = (rng.standard_normal((k, 4)).astype("f4") for k in (5, 4, 4))
    nodes = [
        node("Mul", ["open", "square"], ["gated"]), node("MatMul", ["x", "gated"], ["y"]),
        node(op, ["gate"], ["open"], **GATES[op]),
    ]  # fmt: skip
    arrays, path = {"gate": gate, "square": square}, tmp_path / "net.onnx"
    file_of(nodes[2:] + nodes[:2], {"x": ["n", 4]}, ["y"], arrays, path, ir_version=8)
    wanted = ran(path, {"x": x})["y"]
    np.testing.assert_allclose(load(path).forward(False, x), wanted, rtol=1e-5, atol=1e-6)


def test_windows_over_constants_are_refused_before_they_run(tmp_path):
    """Their time is not told by what goes in and comes out."""
    pool = node("MaxPool", ["c"], ["p"], kernel_shape=[1 << 20], pads=[1 << 19] * 2)
    constant, path = {"c": np.zeros((1, 1, 1 << 10), np.float32)}, tmp_path / "net.onnx"
    file_of([pool, node("Add", ["x", "p"], ["y"])], {"x": ["n", 1, 1]}, ["y"], constant, path)
    with pytest.raises(FileFormatError, match="constants alone"):
        load(path)
