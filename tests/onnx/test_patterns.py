"""Operators that nearly are one layer: they stay what they are, as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import layers
from singanet.onnx import load
from tests.onnx.runtime import onnx, ran
from tests.onnx.test_load import file_of

node = onnx.helper.make_node
X = np.random.default_rng(0).uniform(0.5, 2, (3, 4)).astype(np.float32)
NUMBERS = {"two": 2.0, "root": 2**0.5, "one": 1.0, "half": 0.5, "epsilon": 0.5}


def opened(tmp_path, nodes, arrays):
    """The net of a file whose last node makes ``y``, compared with ONNX Runtime's outputs."""
    arrays = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    arrays["last"] = np.array([-1])
    path = file_of(nodes, {"x": ["N", 4]}, ["y"], arrays, tmp_path / "net.onnx", ir_version=10)
    net = load(path)
    (wanted,) = ran(path, {"x": X}).values()
    np.testing.assert_allclose(net.forward(False, X), wanted, rtol=1e-4, atol=1e-5)
    return [type(layer) for layer in net.layers]


@pytest.mark.parametrize(
    ("square", "is_one"),
    [
        (node("Pow", ["d", "two"], ["s"]), True),
        (node("Mul", ["d", "d"], ["s"]), True),
        (node("Mul", ["d", "two"], ["s"]), False),
    ],
)
def test_only_squares_make_a_variance(tmp_path, square, is_one):
    nodes = [
        node("ReduceMean", ["x", "last"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        square,
        node("ReduceMean", ["s", "last"], ["v"]),
        node("Add", ["v", "epsilon"], ["p"]),
        node("Sqrt", ["p"], ["r"]),
        node("Div", ["d", "r"], ["n"]),
        node("Mul", ["n", "gamma"], ["g"]),
        node("Add", ["g", "beta"], ["y"]),
    ]
    arrays = {**NUMBERS, "gamma": [1, 2, 3, 4], "beta": [4, 3, 2, 1]}
    kinds = opened(tmp_path, nodes, arrays)
    assert (layers.LayerNorm in kinds) == is_one


@pytest.mark.parametrize(("inside", "is_one"), [(["x", "root"], True), (["root", "x"], False)])
def test_only_what_is_divided_by_the_root_makes_a_gelu(tmp_path, inside, is_one):
    nodes = [
        node("Div", inside, ["i"]),
        node("Erf", ["i"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["x", "p"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    kinds = opened(tmp_path, nodes, NUMBERS)
    assert (layers.Activation in kinds) == is_one
