"""Sums by letters, against NumPy's own; what PyTorch and Keras write for attention among them."""

import numpy as np
import pytest

from singanet import layers
from singanet.errors import FileFormatError
from singanet.onnx import load
from tests.onnx.runtime import file_of, onnx

SIZES = dict(zip("Nnabcde", (5, 5, 2, 3, 4, 6, 3), strict=True))


def drawn(letters, rng):
    return rng.standard_normal([SIZES[each] for each in letters]).astype(np.float32)


def written(equation, constants, path):
    terms = equation.split("->")[0].replace(" ", "").split(",")
    names = [chr(ord("x") + k) for k in range(len(terms))]
    node = onnx.helper.make_node("Einsum", names, ["out"], equation=equation)
    inputs = {
        name: ["N" if each in "nN" else SIZES[each] for each in term]
        for name, term in zip(names, terms, strict=True)
        if name not in constants
    }
    return file_of([node], inputs, ["out"], constants, path)


@pytest.mark.parametrize(
    "equation",
    ["nab,bcd->nacd", "nabc,bcd->nad", "nab,cb->nac", "Nab,bc", "na b , a->nb", "nab,cd->nacdb",
     "nab,ac->nbc", "nab,b->n"],
)  # fmt: skip
@pytest.mark.parametrize("constant", ["y", "x"])
def test_by_a_constant(equation, constant, tmp_path):
    rng = np.random.default_rng(0)
    left, _, out = equation.replace(" ", "").partition("->")
    a, b = left.split(",")
    terms = (a, b) if constant == "y" else (b, a)
    equation = ",".join(terms) + (f"->{out}" if out else "")
    arrays = dict(zip("xy", (drawn(term, rng) for term in terms), strict=True))
    wanted = np.einsum(equation, *arrays.values())
    path = written(equation, {constant: arrays.pop(constant)}, tmp_path / "net.onnx")
    (x,) = arrays.values()
    found = load(path, seed=0).forward(False, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    ["nab,nbc->nac", "naecd,nabcd->nacbe", "nab,ncd->nacbd", "na,na->n", "nabc,nb->nca",
     "nab,nacb->nc", "ncab,nd->nabd"],
)  # fmt: skip
def test_of_two_parts_of_the_net(equation, tmp_path):
    rng = np.random.default_rng(0)
    terms = equation.split("->")[0].split(",")
    x, y = (drawn(term, rng) for term in terms)
    path = written(equation, {}, tmp_path / "net.onnx")
    found = load(path).forward(False, {"x": x, "y": y})
    np.testing.assert_allclose(found, np.einsum(equation, x, y), rtol=1e-5, atol=1e-5)


def test_a_projection_with_its_bias_is_one_layer(tmp_path):
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("Einsum", ["x", "fc.weight"], ["m"], equation="nab,bcd->nacd"),
        onnx.helper.make_node("Cast", ["m"], ["k"], to=1),
        onnx.helper.make_node("Add", ["k", "fc.bias"], ["y"]),
    ]
    arrays = {"fc.weight": drawn("bcd", rng), "fc.bias": drawn("cd", rng)}
    path = file_of(nodes, {"x": ["N", 2, 3]}, ["y"], arrays, tmp_path / "net.onnx")
    net, x = load(path), drawn("nab", rng)
    assert net.param_names() == ["fc/weight", "fc/bias"]
    wanted = np.einsum("nab,bcd->nacd", x, arrays["fc.weight"]) + arrays["fc.bias"]
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    [
        "nab,bc->na",
        "nab,bc->nabc",
        "nab,bc->ac",
        "naa,ab->nb",
        "n...,ab->nb",
        "nab,bc->nacd",
        "nab,bcde->nacd1",
        "",
    ],
)
def test_what_mixes_samples_or_is_no_sum_is_refused(equation, tmp_path):
    node = onnx.helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    w = np.ones((3, 4), np.float32)
    path = file_of([node], {"x": ["N", 2, 3]}, ["y"], {"w": w}, tmp_path / "net.onnx")
    with pytest.raises(FileFormatError, match="Einsum"):
        load(path)


def test_casts_that_change_nothing_stand_in_no_pattern_s_way(tmp_path):
    make, w = onnx.helper.make_node, np.ones((3, 4), np.float32)
    nodes = [
        make("Cast", ["x"], ["a"], to=1), make("Identity", ["a"], ["b"]),
        make("MatMul", ["b", "w"], ["c"]), make("Cast", ["c"], ["d"], to=1),
        make("Add", ["d", "v"], ["e"]), make("Cast", ["e"], ["y"], to=1),
        make("Relu", ["b"], ["z"]),
    ]  # fmt: skip
    path = file_of(nodes, {"x": ["N", 3]}, ["y", "z"], {"w": w, "v": w[0]}, tmp_path / "net.onnx")
    # Behind the input; the outputs are Dummies of their names in the file.
    kinds = [type(layer) for layer in load(path).layers if not isinstance(layer, layers.Dummy)]
    assert kinds == [layers.Dense, layers.Activation]


def test_what_others_read_behind_a_cast_stays(tmp_path):
    make, w = onnx.helper.make_node, np.full((3, 4), 0.5, np.float32)
    nodes = [
        make("MatMul", ["x", "w"], ["c"]), make("Cast", ["c"], ["d"], to=1),
        make("Add", ["d", "v"], ["y"]), make("Relu", ["d"], ["z"]),
    ]  # fmt: skip
    path = file_of(nodes, {"x": ["N", 3]}, ["y", "z"], {"w": w, "v": w[0]}, tmp_path / "net.onnx")
    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    y, z = load(path).forward(False, x).values()
    np.testing.assert_allclose(y, x @ w + w[0])
    np.testing.assert_allclose(z, np.maximum(x @ w, 0))
