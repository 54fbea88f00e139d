"""Activation, PReLU, Softmax, LogSoftmax, GLU and GatedUnit."""

import math
from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import GLU, Activation, Dense, GatedUnit, LogSoftmax, Multiply, PReLU, Softmax
from singanet.loss import SquaredError
from singanet.ops import numpy_ops
from singanet.ops.interface import ACTIVATIONS
from singanet.optimizer import SGD
from tests.kit.layers import beside_torch, case, cases, expect_refused, refuses, run

MODES = list(ACTIVATIONS)


def sigmoid(x):
    return 0.5 * (1.0 + np.tanh(x / 2.0))


FORMULAS = {
    "relu": lambda x: np.where(x > 0, x, 0.0), "sigmoid": sigmoid,
    "tanh": lambda x: (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1.0),
    "gelu": lambda x: x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2.0)),
    "silu": lambda x: x / (1.0 + np.exp(-x)), "softplus": lambda x: np.logaddexp(0.0, x),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "hard_sigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard_swish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1.0))
    ),
    "celu": lambda x: np.where(x > 0, x, np.exp(x) - 1.0),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "softcap": lambda x: 30.0 * (1.0 - 2.0 / (np.exp(2.0 * x / 30.0) + 1.0)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
}  # fmt: skip
OF_ALPHA = {
    # A slope above one, where max(x, alpha x) would be wrong.
    ("leaky_relu", 3.0): lambda x: x * np.where(x > 0, 1.0, 3.0),
    ("elu", 0.3): lambda x: np.where(x > 0, x, 0.3 * (np.exp(x) - 1.0)),
    ("celu", 0.3): lambda x: np.where(x > 0, x, 0.3 * (np.exp(x / 0.3) - 1.0)),
    ("softcap", 1.5): lambda x: 1.5 * (1.0 - 2.0 / (np.exp(2.0 * x / 1.5) + 1.0)),
}


def away_from_kinks(rng, shape):
    """Central differences mean nothing at zero; relu6 and its kin have another at six."""
    x = 3.0 * rng.standard_normal(shape)
    return np.where(np.abs(x) < 1e-3, 0.5, x)


def activated(formula, mode, alpha=None, shape=(3, 4, 5)):
    return case(lambda: Activation("act", mode, alpha=alpha), shape, lambda p, x: formula(x),
                away_from_kinks)  # fmt: skip


def exponentials(axis, x):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def gated(mode, **given):
    def expected(p, x):
        gate = x @ p["gate_weight"] + p.get("gate_bias", 0.0)
        h = FORMULAS[mode](gate) * (x @ p["up_weight"] + p.get("up_bias", 0.0))
        return h @ p["down_weight"] + p.get("down_bias", 0.0) if "down_weight" in p else h

    return case(lambda: GatedUnit("ffn", 5, mode=mode, **given), (3, 4), expected)


CASES = {
    **{mode: activated(formula, mode) for mode, formula in FORMULAS.items()},
    **{f"{mode}, {a}": activated(formula, mode, a) for (mode, a), formula in OF_ALPHA.items()},
    "relu of features": activated(FORMULAS["relu"], "relu", shape=(7,)),
    "PReLU": case(
        lambda: PReLU("it"), (3, 2, 4),
        lambda p, x: np.maximum(x, 0) + np.einsum("nchw,c->nchw", np.minimum(x, 0), p["a"])
    ),
    "PReLU of features": case(
        lambda: PReLU("it"), (5,), lambda p, x: np.maximum(x, 0) + p["a"] * np.minimum(x, 0)
    ),
    "PReLU, shared": case(
        lambda: PReLU("it", channel_shared=True), (3, 4),
        lambda p, x: np.maximum(x, 0) + p["a"].item() * np.minimum(x, 0)
    ),
    "Softmax": case(
        lambda: Softmax("it"), (5,),
        lambda p, x: np.array([[np.exp(v) / sum(np.exp(row)) for v in row] for row in x])
    ),
    "Softmax of channels": case(
        lambda: Softmax("it", 1), (3, 2, 4), lambda p, x: exponentials(1, x)
    ),
    "Softmax, last axis": case(lambda: Softmax("it", -1), (3, 4), lambda p, x: exponentials(2, x)),
    "Softmax, axis 2": case(lambda: Softmax("it", 2), (3, 4), lambda p, x: exponentials(2, x)),
    "LogSoftmax": case(
        lambda: LogSoftmax("it", 1), (3, 4), lambda p, x: np.log(exponentials(1, x))
    ),
    "GLU": case(lambda: GLU("it"), (3, 4), lambda p, x: x[..., :2] * sigmoid(x[..., 2:])),
    "GLU of channels": case(
        lambda: GLU("it", axis=1), (4, 3, 2), lambda p, x: x[:, :2] * sigmoid(x[:, 2:])
    ),
    "GatedUnit": gated("silu", output_dim=4),
    "GatedUnit, biases": gated("gelu", output_dim=3, use_bias=True),
    "GatedUnit without down": gated("gelu_tanh"),
    "GatedUnit, sigmoid": gated("sigmoid", output_dim=2)
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_every_function_has_a_formula():
    assert {*FORMULAS} == {*MODES}


def llama(functional, x, p):
    return (functional.silu(x @ p["gate_weight"]) * (x @ p["up_weight"])) @ p["down_weight"]


TORCHS = {"hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish", "sigmoid": "sigmoid"}
PEERS = {
    **{mode: (partial(Activation, "it", mode), (40,), lambda f, x, p, mode=mode:
              getattr(f, TORCHS.get(mode, mode))(x)) for mode in MODES},
    "softcap": (lambda: Activation("it", "softcap"), (40,), lambda f, x, p: 30 * f.tanh(x / 30)),
    "gelu_tanh": (lambda: Activation("it", "gelu_tanh"), (40,),
                  lambda f, x, p: f.gelu(x, approximate="tanh")),
    "GLU": (lambda: GLU("it", 1), (4, 3, 2), lambda f, x, p: f.glu(x, 1)),
    "PReLU": (lambda: PReLU("it"), (4, 5, 6), lambda f, x, p: f.prelu(x, p["a"])),
    "PReLU, shared": (lambda: PReLU("it", channel_shared=True), (4, 5, 6),
                      lambda f, x, p: f.prelu(x, p["a"])),
    "GatedUnit": (lambda: GatedUnit("it", 10, 6), (7, 6), llama),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_pytorch(name, dtype):
    # PyTorch's sixth of hard_sigmoid is a float32.
    beside_torch(*PEERS[name], np.float32 if name == "hard_sigmoid" else dtype)


def test_logarithms_of_what_is_zero_and_their_gradient_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    x = np.array([[0, -1000, 3, 1e30], [1, 2, -2000, 4]], np.float32)
    dy = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    theirs = torch.log_softmax(leaf, 1)
    theirs.backward(torch.tensor(dy))
    y = numpy_ops.log_softmax(x)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-6)
    dx = numpy_ops.log_softmax_backward(dy, y)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


# -- numbers at the ends of their range -----------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_stays_finite_and_in_its_type_for_extreme_inputs(mode, dtype):
    largest = float(np.finfo(dtype).max)
    if mode == "selu":
        largest /= 2  # Which it multiplies by 1.05.
    x = np.array([[-largest, -1e4, -100, -20, -0.0, 0.0, 20, 100, 1e4, largest]], dtype)
    y, dx, _ = run(Activation("act", mode), x, np.ones_like(x))
    assert y.dtype == dx.dtype == dtype
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    top = {"sigmoid": 1, "tanh": 1, "relu6": 6, "hard_sigmoid": 1, "softsign": 1, "softcap": 30}
    scale = 1.0507009873554805 if mode == "selu" else 1.0
    rtol = 2e-4 if mode == "softsign" else 2 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y[0, -2], top.get(mode, scale * x[0, -2]), rtol=rtol)
    np.testing.assert_allclose(dx[0, -1], 0 if mode in top else scale, rtol=rtol, atol=1e-8)


def test_relu_passes_no_gradient_at_zero():
    dx = run(Activation("act", "relu"), np.array([[-0.0, 0.0]]), np.ones((1, 2)))[1]
    np.testing.assert_array_equal(dx, [[0, 0]])


@pytest.mark.parametrize("mode", MODES)
def test_nan_passes_through(mode):
    y = run(Activation("act", mode), np.array([[np.nan, 1.0]]))
    assert np.isnan(y[0, 0])
    assert np.isfinite(y[0, 1])


def test_gelu_keeps_relative_accuracy_in_its_left_tail():
    """1 + erf would cancel there: Φ(−4) = 3.167124e-5."""
    x = np.linspace(-5.0, -1.0, 41, dtype=np.float32)[None]
    exact = [t * 0.5 * math.erfc(-t / math.sqrt(2.0)) for t in x[0].astype(float)]
    np.testing.assert_allclose(run(Activation("act", "gelu"), x)[0], exact, rtol=2e-5)


def test_softmax_of_scores_of_any_size_does_not_overflow(rng):
    y = run(Softmax("p"), np.array([[1e30, 1e30, -1e30], [-1e38, -1e38, -1e38]], np.float32))
    np.testing.assert_allclose(y, [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)
    x = rng.standard_normal((4, 6))
    np.testing.assert_allclose(run(Softmax("p"), x + 100.0), run(Softmax("p"), x), rtol=1e-10)


# -- names, parameters, nets ----------------------------------------------------------------------


def test_shapes_and_defaults():
    layer = Activation("act", input_sample_shape=(64, 1, 12))
    assert (layer.get_output_sample_shape(), layer.mode) == ((64, 1, 12), "relu")
    assert Softmax("p", input_sample_shape=(12,)).get_output_sample_shape() == (12,)
    assert Activation("cap", "softcap").alpha == 30.0, "of Gemma 2"
    layer = PReLU("prelu", input_sample_shape=(2, 3, 3))
    assert (layer.param_names(), layer.param_values()[0].tolist()) == (["prelu/a"], [0.25, 0.25])
    layer = GatedUnit("ffn", 5, 3, use_bias=True)
    assert layer.build((None, 4)) == (-1, 3)
    assert {name: param.shape for name, param in layer.params.items()} == {
        "gate_weight": (4, 5), "gate_bias": (5,), "up_weight": (4, 5), "up_bias": (5,),
        "down_weight": (5, 3), "down_bias": (3,),
    }  # fmt: skip
    assert list(GatedUnit("ffn", 5).params) == []


def test_a_name_decides_nothing_beside_a_function():
    assert Activation("mish", "relu").mode == "relu"
    assert [Activation(f"relu{k}").mode for k in range(8)] == ["relu"] * 8
    assert Activation("mish").mode == Activation("mish").to_config()["arguments"]["mode"] == "mish"
    assert Activation("relu6", "relu6").mode == "relu6"
    assert Activation("softmax", "tanh").mode == "tanh"


def test_steps_of_a_gated_unit_equal_those_of_separate_layers(rng):
    x = Input("x", (6, 4))
    one = FeedForwardNet(inputs=x, outputs=GatedUnit("ffn", 8, 4)(x), loss=SquaredError())
    z = Input("x", (6, 4))
    gate = Activation("act", "silu")(Dense("gate", 8, use_bias=False)(z))
    y = Dense("down", 4, use_bias=False)(Multiply("mul")(gate, Dense("up", 8, use_bias=False)(z)))
    other = FeedForwardNet(inputs=z, outputs=y, loss=SquaredError(), seed=0)
    pairs = [(one["ffn"].params[f"{part}_weight"].value, other[part].params["weight"].value)
             for part in ("gate", "up", "down")]  # fmt: skip
    for ours, theirs in pairs:
        ours[...] = theirs
    for _ in range(4):
        x, y = (rng.standard_normal((5, 6, 4)).astype(np.float32) for _ in range(2))
        losses = [net.step(x, y, SGD(lr=0.1))[0] for net in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


# -- refusals -------------------------------------------------------------------------------------

NAMES, ALPHA, MODE = UnknownNameError, "argument alpha: expected", "argument mode: expected"
WRONG_SHAPES = [
    (Activation("it"), "expected one input; received", [[(3,), (3,)]]),
    (Softmax("it"), "expected one input", [[(3,), (3,)]]),
    *[(Softmax("it", axis), f"axis {axis}, counted with the batch axis", [(3, 4)])
      for axis in (0, 3, 5, -3, -4)],
    *[(GLU("it", axis), "expected one input with an even extent", [shape])
      for axis, shape in ((-1, (4, 3)), (0, (4,)), (2, (4,)), (-2, (4,)))],
    (PReLU("it"), r"expected samples of shape \(channels", [()]),
    (GatedUnit("it", 4), "expected one input of sample shape", [(), (3, None), [(3,), (3,)]]),
]  # fmt: skip


@refuses([
    *[(partial(Activation, "it", mode, alpha=0.1), ArgumentError, f"{ALPHA}.*alpha=0.1 for {mode}")
      for mode in ("relu", "sigmoid", "selu", "gelu")],
    *[(partial(Activation, "it", "elu", alpha=alpha), ArgumentError, ALPHA)
      for alpha in ("0.1", float("nan"), float("inf"), [0.1])],
    (lambda: Activation("it", "celu", alpha=0), ArgumentError, f"{ALPHA}.*positive"),
    (lambda: Activation("it", "softcap", alpha=-30.0), ArgumentError, f"{ALPHA}.*positive"),
    (lambda: Activation("it", "rleu"), NAMES, f"{MODE}.*did you mean 'relu'"),
    (lambda: Activation("it", 3), NAMES, f"{MODE}.*'relu'"),
    (lambda: Activation("it", ["relu"]), NAMES, f"{MODE}.*'relu'"),
    *[(partial(Softmax, "it", axis=axis), ArgumentError, "argument axis: expected an int")
      for axis in (1.0, "1", None, (1,))],
    (lambda: GLU("it", "last"), ArgumentError, "argument axis: expected an int"),
    *[(partial(GatedUnit, "it", **{"units": 4, **bad}), ArgumentError,
       f"argument {next(iter(bad))}: expected")
      for bad in ({"units": 0}, {"units": 1.5}, {"output_dim": 0})],
    *[(partial(GatedUnit, "it", 4, mode=mode), NAMES, MODE)
      for mode in ("swiglu", "leaky_relu", None, [])],
    *[(partial(layer.build, shape), ShapeError, words)
      for layer, words, shapes in WRONG_SHAPES for shape in shapes],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")


@pytest.mark.parametrize("name", ["softmax", "linear", "swish", "exponential"])
def test_a_function_of_others_alone_is_no_relu_of_that_name(name):
    expect_refused(lambda: Activation(name), ArgumentError, f"'{name}', the name of another")
