"""Graphs of a few nodes give what their operators say, by NumPy."""

import numpy as np
import pytest

from singanet.errors import FileFormatError
from singanet.onnx import load
from tests.onnx.runtime import onnx

helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def loaded(path, nodes, inputs, arrays=()):
    """The net of ``nodes`` from `onnx.helper.make_node`'s arguments, the last one giving ``y``."""
    graph = helper.make_graph(
        [helper.make_node(kind, of, [to], **more) for kind, of, to, more in nodes],
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in dict(arrays).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return load(path)


def whole(*shape, seed=0):
    """Small whole numbers, whose sums and products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("trans", [0, 1])
def test_a_product_and_an_offset_that_are_both_computed(tmp_path, trans):
    a, c, b = whole(4, 3), whole(4, 5, seed=1), whole(3, 5, seed=2)
    more = {"alpha": 0.5, "beta": 2.0, "transB": trans}
    net = loaded(
        tmp_path / "net.onnx",
        [("Gemm", ["a", "b", "c"], "y", more)],
        {"a": ["n", 3], "c": ["n", 5]},
        {"b": b.T if trans else b},
    )
    np.testing.assert_array_equal(net.forward(False, {"a": a, "c": c}), 0.5 * (a @ b) + 2.0 * c)


@pytest.mark.parametrize(
    ("kind", "formula"), [("Less", np.less), ("GreaterOrEqual", np.greater_equal)]
)
@pytest.mark.parametrize("first", [False, True])
def test_a_comparison_with_a_number_is_a_layer_that_knows_it(tmp_path, kind, formula, first):
    x, number = whole(4, 3), np.float32(1)
    nodes = [
        (kind, ["number", "x"] if first else ["x", "number"], "truth", {}),
        ("Cast", ["truth"], "y", {"to": FLOAT}),
    ]
    net = loaded(tmp_path / "net.onnx", nodes, {"x": ["n", 3]}, {"number": number})
    wanted = formula(number, x) if first else formula(x, number)
    np.testing.assert_array_equal(net.forward(False, x), wanted)
    assert not net.params()
    (compare,) = (layer for layer in net.layers if type(layer).__name__ == "Compare")
    assert compare.value == number


@pytest.mark.parametrize("transposed", [False, True])
def test_a_factor_and_an_offset_for_each_channel_are_one_layer(tmp_path, transposed):
    x, gamma, beta = whole(4, 3, 2), whole(3, 1, seed=1), whole(3, 1, seed=2)
    nodes = [
        ("Mul", ["gamma", "x"] if transposed else ["x", "gamma"], "scaled", {}),
        ("Add", ["beta", "scaled"] if transposed else ["scaled", "beta"], "y", {}),
    ]
    arrays = {"gamma": gamma, "beta": beta}
    net = loaded(tmp_path / "net.onnx", nodes, {"x": ["n", 3, 2]}, arrays)
    np.testing.assert_array_equal(net.forward(False, x), x * gamma + beta)
    assert [type(layer).__name__ for layer in net.layers if layer.params] == ["Scale"]


def test_a_factor_for_each_channel_and_an_offset_for_each_place(tmp_path):
    x, gamma, beta = whole(4, 3, 2), whole(3, 1, seed=1), whole(3, 2, seed=2)
    nodes = [("Mul", ["x", "gamma"], "scaled", {}), ("Add", ["scaled", "beta"], "y", {})]
    arrays = {"gamma": gamma, "beta": beta}
    net = loaded(tmp_path / "net.onnx", nodes, {"x": ["n", 3, 2]}, arrays)
    np.testing.assert_array_equal(net.forward(False, x), x * gamma + beta)


def test_pooling_over_more_axes_than_there_are_layers_for(tmp_path):
    x = whole(4, 3, 4, 2, 3, 2)
    more = {"kernel_shape": [2, 1, 1, 1], "strides": [2, 1, 1, 1]}
    net = loaded(tmp_path / "net.onnx", [("MaxPool", ["x"], "y", more)], {"x": ["n", *x.shape[1:]]})
    np.testing.assert_array_equal(net.forward(False, x), x.reshape(4, 3, 2, 2, 2, 3, 2).max(3))


def test_windows_in_the_middle_of_three_axes(tmp_path):
    x = whole(4, 3, 2, 4, 3)
    more = {"kernel_shape": [1, 2, 1], "strides": [1, 2, 1]}
    net = loaded(tmp_path / "net.onnx", [("MaxPool", ["x"], "y", more)], {"x": ["n", *x.shape[1:]]})
    np.testing.assert_array_equal(net.forward(False, x), x.reshape(4, 3, 2, 2, 2, 3).max(4))


def test_more_at_the_end_of_a_transposed_convolution_than_a_stride(tmp_path):
    more = {"strides": [2, 2], "output_padding": [2, 0]}
    nodes, inputs = [("ConvTranspose", ["x", "w"], "y", more)], {"x": ["n", 3, 4, 4]}
    with pytest.raises(FileFormatError, match="output_padding below the strides"):
        loaded(tmp_path / "net.onnx", nodes, inputs, {"w": whole(3, 2, 2, 2)})


@pytest.mark.parametrize("places", [(), (5,), (2, 4), (2, 3, 2)])
def test_a_normalisation_of_channels_with_however_many_axes_behind(tmp_path, places):
    x, gamma, beta, mean = whole(4, 3, *places), whole(3), whole(3, seed=1), whole(3, seed=2)
    var = np.array([0.25, 4.0, 1.0], np.float32)
    arrays = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    nodes = [("BatchNormalization", ["x", *arrays], "y", {"epsilon": 0.0625})]
    net = loaded(tmp_path / "net.onnx", nodes, {"x": ["n", 3, *places]}, arrays)
    g, b, m, v = (each.reshape(3, *[1] * len(places)) for each in (gamma, beta, mean, var))
    wanted = (x - m) / np.sqrt(v + 0.0625) * g + b
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("places", [(5,), (2, 4)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_normalisation_of_groups_with_numbers_for_each_group(tmp_path, places, groups):
    """As before version 21, which has them for each channel."""
    x, gamma, beta = whole(4, 6, *places), whole(groups), whole(groups, seed=1)
    more = {"num_groups": groups, "epsilon": 0.0625}
    nodes = [("GroupNormalization", ["x", "gamma", "beta"], "y", more)]
    arrays = {"gamma": gamma, "beta": beta}
    net = loaded(tmp_path / "net.onnx", nodes, {"x": ["n", 6, *places]}, arrays)
    rows = x.reshape(4, groups, -1).astype(float)
    off = rows - rows.mean(-1, keepdims=True)
    normal = off / np.sqrt((off**2).mean(-1, keepdims=True) + 0.0625)
    wanted = (normal * gamma[:, None] + beta[:, None]).reshape(x.shape)
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_places_of_any_number_of_classes(tmp_path, depth):
    x = np.array([[0, 1], [2, 3], [-1, -3], [-4, 0]], np.float32)
    nodes, inputs = [("OneHot", ["x", "depth", "values"], "y", {})], {"x": ["n", 2]}
    arrays = {"depth": np.array([depth]), "values": np.array([-1, 5], np.float32)}
    if not depth:
        with pytest.raises(FileFormatError, match="a new axis .* of a known size"):
            loaded(tmp_path / "net.onnx", nodes, inputs, arrays)
        return
    net = loaded(tmp_path / "net.onnx", nodes, inputs, arrays)
    classes = np.arange(depth)
    on = (x[..., None] == classes) | (x[..., None] + depth == classes)
    np.testing.assert_array_equal(net.forward(False, x), np.where(on, 5, -1))


@pytest.mark.parametrize(
    ("sample", "shape"),
    [
        *(
            ((3, 2), shape)
            for shape in ([4, -1], [4, 6], [4, 2, -1], [4, 0, 2], [4, 0, -1], [-1, 6])
        ),
        ((1,), [4]),
    ],
)
def test_a_reshape_of_a_file_for_so_many_samples_takes_any_number(tmp_path, sample, shape):
    nodes, inputs = [("Reshape", ["x", "shape"], "y", {})], {"x": [4, *sample]}
    net = loaded(tmp_path / "net.onnx", nodes, inputs, {"shape": np.array(shape)})
    for n in (4, 5):
        x = whole(n, *sample)
        sizes = [x.shape[k] if size == 0 else size for k, size in enumerate(shape)]
        np.testing.assert_array_equal(net.forward(False, x), x.reshape(n, *sizes[1:]))
