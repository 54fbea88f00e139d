"""Operators that nearly are one layer: they stay what they are, as ONNX Runtime computes them."""

import warnings

import numpy as np
import pytest

from singanet import layers
from singanet.onnx import load
from tests.onnx.runtime import file_of, onnx, ran

torch = pytest.importorskip("torch")
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


class Near(torch.nn.Module):
    """Attention of two heads to what went before, the nearer the more by ``slope``."""

    def __init__(self, slope):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(8, 8) for _ in range(4))
        back = torch.arange(6.0)[:, None] - torch.arange(6.0)
        self.register_buffer("bias", torch.where(back < 0, -1e9, -slope * back))

    def forward(self, x):
        q, k, v = (
            each(x).reshape(-1, 6, 2, 4).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        seen = torch.softmax(q @ k.transpose(-1, -2) / 2 + self.bias, -1)
        return self.out((seen @ v).transpose(1, 2).reshape(-1, 6, 8))


@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_only_a_mask_of_zeros_makes_attention_causal(tmp_path, slope):
    torch.manual_seed(0)
    module, x = Near(slope).eval(), torch.randn(3, 6, 8)
    path, named = tmp_path / "net.onnx", {"input_names": ["x"], "opset_version": 17}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, dynamo=False, dynamic_axes={"x": {0: "n"}}, **named)
    net = load(path)
    np.testing.assert_allclose(net.forward(False, x.numpy()), module(x).detach(), atol=1e-5)
    (attention,) = (each for each in net.layers if isinstance(each, layers.MultiHeadAttention))
    assert attention.causal == (slope == 0)
