"""Graphs of a few nodes give what their operators say, by NumPy; sums by letters among them."""

import numpy as np
import pytest

from singanet import layers
from singanet.errors import FileFormatError
from singanet.onnx import load
from tests.onnx.runtime import file_of, node, onnx

FLOAT = onnx.TensorProto.FLOAT


@pytest.fixture
def loaded(tmp_path):
    """The net of ``nodes`` as operator, inputs, output and attributes; outputs are y, and z."""

    def loaded(nodes, inputs, arrays=(), outputs=("y",), **more):
        made = [node(kind, of, [to], **of_node) for kind, of, to, of_node in nodes]
        path = file_of(made, inputs, outputs, dict(arrays), tmp_path / "net.onnx", **more)
        return load(path, seed=0)

    return loaded


def whole(*shape, seed=0):
    """Small whole numbers, whose sums and products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def test_bounds_that_are_computed(loaded):
    x = whole(4, 3)
    nodes = [("ReduceMax", ["x"], "high", {"axes": [1]}), ("Sub", ["high", "two"], "low", {}),
             ("Clip", ["x", "low", "one"], "y", {})]  # fmt: skip
    net = loaded(nodes, {"x": ["n", 3]}, {"two": np.float32(2), "one": np.float32(1)}, opset=13)
    wanted = np.minimum(np.maximum(x, x.max(axis=1, keepdims=True) - 2), 1)
    np.testing.assert_array_equal(net.forward(False, x), wanted)


@pytest.mark.parametrize("count", [1, 3])
def test_features_that_are_scaled(loaded, count):
    x, offset, scale = whole(4, 3), [1.0, 2.0, 3.0][:count], [0.5, 2.0, 4.0][:count]
    scaler = {"domain": "ai.onnx.ml", "offset": offset, "scale": scale}
    imports = [onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    net = loaded([("Scaler", ["x"], "y", scaler)], {"x": ["n", 3]}, imports=imports)
    np.testing.assert_array_equal(net.forward(False, x), (x - offset) * scale)
    assert not [p for p in net.params() if p.trainable]


@pytest.mark.parametrize("trans", [0, 1])
def test_a_product_and_an_offset_that_are_both_computed(loaded, trans):
    a, c, b = whole(4, 3), whole(4, 5, seed=1), whole(3, 5, seed=2)
    nodes = [("Gemm", ["a", "b", "c"], "y", {"alpha": 0.5, "beta": 2.0, "transB": trans})]
    net = loaded(nodes, {"a": ["n", 3], "c": ["n", 5]}, {"b": b.T if trans else b})
    np.testing.assert_array_equal(net.forward(False, {"a": a, "c": c}), 0.5 * (a @ b) + 2.0 * c)


@pytest.mark.parametrize(
    ("kind", "formula"), [("Less", np.less), ("GreaterOrEqual", np.greater_equal)]
)
@pytest.mark.parametrize("first", [False, True])
def test_a_comparison_with_a_number_is_a_layer_that_knows_it(loaded, kind, formula, first):
    x, number = whole(4, 3), np.float32(1)
    operands = ["number", "x"] if first else ["x", "number"]
    nodes = [(kind, operands, "truth", {}), ("Cast", ["truth"], "y", {"to": FLOAT})]
    net = loaded(nodes, {"x": ["n", 3]}, {"number": number})
    wanted = formula(number, x) if first else formula(x, number)
    np.testing.assert_array_equal(net.forward(False, x), wanted)
    assert not net.params()
    (compare,) = (layer for layer in net.layers if isinstance(layer, layers.Compare))
    assert compare.value == number


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("offset", "is_one"), [((3, 1), True), ((3, 2), False)])
def test_a_factor_for_each_channel_and_an_offset(loaded, swapped, offset, is_one):
    x, gamma, beta = whole(4, 3, 2), whole(3, 1, seed=1), whole(*offset, seed=2)
    pairs = ["x", "gamma"], ["scaled", "beta"]
    first, second = (pair[::-1] if swapped else pair for pair in pairs)
    nodes = [("Mul", first, "scaled", {}), ("Add", second, "y", {})]
    net = loaded(nodes, {"x": ["n", 3, 2]}, {"gamma": gamma, "beta": beta})
    np.testing.assert_array_equal(net.forward(False, x), x * gamma + beta)
    assert ([type(each) for each in net.layers if each.params] == [layers.Scale]) == is_one


@pytest.mark.parametrize(
    ("shape", "kernel", "apart", "axis"),
    [
        ((3, 4, 2, 3, 2), [2, 1, 1, 1], (3, 2, 2, 2, 3, 2), 3),
        ((3, 2, 4, 3), [1, 2, 1], (3, 2, 2, 2, 3), 4),
    ],
)
def test_pooling_over_more_axes_and_in_the_middle(loaded, shape, kernel, apart, axis):
    x, more = whole(4, *shape), {"kernel_shape": kernel, "strides": kernel}
    net = loaded([("MaxPool", ["x"], "y", more)], {"x": ["n", *shape]})
    np.testing.assert_array_equal(net.forward(False, x), x.reshape(4, *apart).max(axis))


def test_more_at_the_end_of_a_transposed_convolution_than_a_stride(loaded):
    nodes = [("ConvTranspose", ["x", "w"], "y", {"strides": [2, 2], "output_padding": [2, 0]})]
    with pytest.raises(FileFormatError, match="output_padding below the strides"):
        loaded(nodes, {"x": ["n", 3, 4, 4]}, {"w": whole(3, 2, 2, 2)})


@pytest.mark.parametrize("places", [(), (5,), (2, 4), (2, 3, 2)])
def test_a_normalisation_of_channels_with_however_many_axes_behind(loaded, places):
    x, gamma, beta, mean = whole(4, 3, *places), whole(3), whole(3, seed=1), whole(3, seed=2)
    arrays = {"gamma": gamma, "beta": beta, "mean": mean, "var": np.array([0.25, 4, 1], "f4")}
    nodes = [("BatchNormalization", ["x", *arrays], "y", {"epsilon": 0.0625})]
    net = loaded(nodes, {"x": ["n", 3, *places]}, arrays)
    g, b, m, v = (each.reshape(3, *[1] * len(places)) for each in arrays.values())
    wanted = (x - m) / np.sqrt(v + 0.0625) * g + b
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("places", [(5,), (2, 4)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_normalisation_of_groups_with_numbers_for_each_group(loaded, places, groups):
    """As before version 21, which has them for each channel."""
    x, gamma, beta = whole(4, 6, *places), whole(groups), whole(groups, seed=1)
    more = {"num_groups": groups, "epsilon": 0.0625}
    nodes = [("GroupNormalization", ["x", "gamma", "beta"], "y", more)]
    net = loaded(nodes, {"x": ["n", 6, *places]}, {"gamma": gamma, "beta": beta})
    rows = x.reshape(4, groups, -1).astype(float)
    off = rows - rows.mean(-1, keepdims=True)
    normal = off / np.sqrt((off**2).mean(-1, keepdims=True) + 0.0625)
    wanted = (normal * gamma[:, None] + beta[:, None]).reshape(x.shape)
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_places_of_any_number_of_classes(loaded, depth):
    x = np.array([[0, 1], [2, 3], [-1, -3], [-4, 0]], np.float32)
    nodes, inputs = [("OneHot", ["x", "depth", "values"], "y", {})], {"x": ["n", 2]}
    arrays = {"depth": np.array([depth]), "values": np.array([-1, 5], np.float32)}
    if not depth:
        with pytest.raises(FileFormatError, match="a new axis .* of a known size"):
            loaded(nodes, inputs, arrays)
        return
    classes = np.arange(depth)
    on = (x[..., None] == classes) | (x[..., None] + depth == classes)
    found = loaded(nodes, inputs, arrays).forward(False, x)
    np.testing.assert_array_equal(found, np.where(on, 5, -1))


SIX = ((3, 2), [4, -1]), ((3, 2), [4, 6]), ((3, 2), [4, 2, -1]), ((3, 2), [4, 0, 2])


@pytest.mark.parametrize(
    ("sample", "shape"), [*SIX, ((3, 2), [4, 0, -1]), ((3, 2), [-1, 6]), ((1,), [4])]
)
def test_a_reshape_of_a_file_for_so_many_samples_takes_any_number(loaded, sample, shape):
    nodes, inputs = [("Reshape", ["x", "shape"], "y", {})], {"x": [4, *sample]}
    net = loaded(nodes, inputs, {"shape": np.array(shape)})
    for n in (4, 5):
        x = whole(n, *sample)
        sizes = [x.shape[k] if size == 0 else size for k, size in enumerate(shape)]
        np.testing.assert_array_equal(net.forward(False, x), x.reshape(n, *sizes[1:]))


# -- sums by letters ------------------------------------------------------------------------------

SIZES = dict(zip("Nnabcde", (5, 5, 2, 3, 4, 6, 3), strict=True))
BY_A_CONSTANT = ["nab,bcd->nacd", "nabc,bcd->nad", "nab,cb->nac", "Nab,bc", "na b , a->nb",
                 "nab,cd->nacdb", "nab,ac->nbc", "nab,b->n"]  # fmt: skip
OF_TWO_PARTS = ["nab,nbc->nac", "naecd,nabcd->nacbe", "nab,ncd->nacbd", "na,na->n", "nabc,nb->nca",
                "nab,nacb->nc", "ncab,nd->nabd"]  # fmt: skip
REFUSED = ["nab,bc->na", "nab,bc->nabc", "nab,bc->ac", "naa,ab->nb", "n...,ab->nb", "nab,bc->nacd",
           "nab,bcde->nacd1", ""]  # fmt: skip


def drawn(letters, rng):
    return rng.standard_normal([SIZES[each] for each in letters]).astype(np.float32)


@pytest.mark.parametrize(
    ("equation", "constant"),
    [*((e, c) for e in BY_A_CONSTANT for c in "xy"), *((e, "") for e in OF_TWO_PARTS)],
)
def test_sums_by_letters(loaded, equation, constant):
    rng = np.random.default_rng(0)
    left, _, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")[:: -1 if constant == "x" else 1]
    equation = ",".join(terms) + (f"->{out}" if out else "")
    arrays = dict(zip("xy", (drawn(term, rng) for term in terms), strict=True))
    wanted = np.einsum(equation, *arrays.values())
    inputs = {
        name: ["N" if each in "nN" else SIZES[each] for each in term]
        for name, term in zip("xy", terms, strict=True)
        if name != constant
    }
    constants = {name: array for name, array in arrays.items() if name == constant}
    net = loaded([("Einsum", ["x", "y"], "z", {"equation": equation})], inputs, constants, ["z"])
    fed = [array for name, array in arrays.items() if name != constant]
    found = net.forward(False, fed[0] if constant else arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["n...a,ab->n...b", "...a,...a", "...cd,cda->...a"])
def test_sums_by_letters_and_dots(loaded, equation):
    terms = equation.partition("->")[0].split(",")
    rng = np.random.default_rng(0)
    shapes = [(5, 2, *(SIZES[each] for each in term.lstrip("n.")[-2:])) for term in terms]
    by = "".join(terms[1].split("..."))
    second = [SIZES[each] for each in by] if "..." not in terms[1] else shapes[1]
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (shapes[0], second))
    inputs = {"x": ["N", *x.shape[1:]]}
    if "..." in terms[1]:
        inputs["w"] = ["N", *w.shape[1:]]
    constants = {} if "w" in inputs else {"w": w}
    net = loaded([("Einsum", ["x", "w"], "z", {"equation": equation})], inputs, constants, ["z"])
    found = net.forward(False, {"x": x, "w": w} if "w" in inputs else x)
    np.testing.assert_allclose(found, np.einsum(equation, x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", REFUSED)
def test_what_mixes_samples_or_is_no_sum_is_refused(loaded, equation):
    nodes = [("Einsum", ["x", "w"], "y", {"equation": equation})]
    with pytest.raises(FileFormatError, match="Einsum"):
        loaded(nodes, {"x": ["N", 2, 3]}, {"w": np.ones((3, 4), np.float32)})


def test_a_projection_with_its_bias_is_one_layer(loaded):
    rng = np.random.default_rng(0)
    nodes = [
        ("Einsum", ["x", "fc.weight"], "m", {"equation": "nab,bcd->nacd"}),
        ("Cast", ["m"], "k", {"to": 1}), ("Add", ["k", "fc.bias"], "y", {}),
    ]  # fmt: skip
    arrays = {"fc.weight": drawn("bcd", rng), "fc.bias": drawn("cd", rng)}
    net, x = loaded(nodes, {"x": ["N", 2, 3]}, arrays), drawn("nab", rng)
    assert net.param_names() == ["fc/weight", "fc/bias"]
    wanted = np.einsum("nab,bcd->nacd", x, arrays["fc.weight"]) + arrays["fc.bias"]
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-5, atol=1e-5)


def test_casts_that_change_nothing_stand_in_no_pattern_s_way_and_others_may_read_them(loaded):
    w, x = np.full((3, 4), 0.5, np.float32), np.array([[1.0, -2.0, 3.0]], np.float32)
    nodes = [
        ("Cast", ["x"], "a", {"to": 1}), ("Identity", ["a"], "b", {}),
        ("MatMul", ["b", "w"], "c", {}), ("Cast", ["c"], "d", {"to": 1}),
        ("Add", ["d", "v"], "e", {}), ("Cast", ["e"], "y", {"to": 1}),
    ]  # fmt: skip
    for read, one in (("b", True), ("d", False)):
        more = [("Relu", [read], "z", {})]
        net = loaded([*nodes, *more], {"x": ["N", 3]}, {"w": w, "v": w[0]}, ["y", "z"])
        y, z = net.forward(False, x).values()
        np.testing.assert_allclose(y, x @ w + w[0])
        np.testing.assert_allclose(z, np.maximum(x if one else x @ w, 0))
        # Behind the input; the outputs are Dummies of their names in the file.
        kinds = [type(layer) for layer in net.layers if not isinstance(layer, layers.Dummy)]
        assert (kinds == [layers.Dense, layers.Activation]) == one
