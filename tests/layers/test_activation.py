"""Activation."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Activation, Context
from singanet.ops import numpy_ops
from singanet.ops.interface import ACTIVATIONS
from singanet.testing import LayerCase


class ActivationCase(LayerCase):
    in_shapes = (3, 4, 5)
    mode = ""
    alpha: float | None = None

    def make(self):
        return Activation("act", self.mode, alpha=self.alpha)

    def draw(self, rng, batch):
        # Away from the kink at zero, where central differences mean nothing.
        x = 2.0 * rng.standard_normal((batch, *self.in_shapes))
        return np.where(np.abs(x) < 1e-3, 0.5, x)


class TestRelu(ActivationCase):
    mode = "relu"

    def expected(self, params, x):
        return np.where(x > 0, x, 0.0)


class TestSigmoid(ActivationCase):
    mode = "sigmoid"

    def expected(self, params, x):
        return 0.5 * (1.0 + np.tanh(x / 2.0))


class TestTanh(ActivationCase):
    mode = "tanh"

    def expected(self, params, x):
        return (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x))


class TestLeakyRelu(ActivationCase):
    mode = "leaky_relu"

    def expected(self, params, x):
        return np.where(x > 0, x, 0.01 * x)


class TestLeakyReluSteep(ActivationCase):
    """A slope above one, where max(x, alpha x) would be wrong."""

    mode = "leaky_relu"
    alpha = 3.0

    def expected(self, params, x):
        return x * np.where(x > 0, 1.0, 3.0)


class TestElu(ActivationCase):
    mode = "elu"

    def expected(self, params, x):
        return np.where(x > 0, x, np.exp(x) - 1.0)


class TestEluScaled(ActivationCase):
    mode = "elu"
    alpha = 0.3

    def expected(self, params, x):
        return np.where(x > 0, x, 0.3 * (np.exp(x) - 1.0))


class TestGelu(ActivationCase):
    mode = "gelu"

    def expected(self, params, x):
        return x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2.0))


class TestSilu(ActivationCase):
    mode = "silu"

    def expected(self, params, x):
        return x / (1.0 + np.exp(-x))


class TestSoftplus(ActivationCase):
    mode = "softplus"

    def expected(self, params, x):
        return np.logaddexp(0.0, x)


class TestRelu6(ActivationCase):
    mode = "relu6"

    def draw(self, rng, batch):
        return 3.0 * super().draw(rng, batch)

    def expected(self, params, x):
        return np.clip(x, 0.0, 6.0)


class TestHardSigmoid(ActivationCase):
    mode = "hard_sigmoid"

    def expected(self, params, x):
        return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


class TestHardSwish(ActivationCase):
    mode = "hard_swish"

    def expected(self, params, x):
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)


class TestSelu(ActivationCase):
    mode = "selu"

    def expected(self, params, x):
        below = 1.6732632423543772 * (np.exp(x) - 1.0)
        return 1.0507009873554805 * np.where(x > 0, x, below)


class TestCelu(ActivationCase):
    mode = "celu"
    alpha = 0.3

    def expected(self, params, x):
        return np.where(x > 0, x, 0.3 * (np.exp(x / 0.3) - 1.0))


class TestSoftsign(ActivationCase):
    mode = "softsign"

    def expected(self, params, x):
        return x / (1.0 + np.abs(x))


class TestMish(ActivationCase):
    mode = "mish"

    def expected(self, params, x):
        return x * np.tanh(np.logaddexp(0.0, x))


class TestSoftcap(ActivationCase):
    mode = "softcap"
    alpha = 1.5

    def expected(self, params, x):
        return 1.5 * (1.0 - 2.0 / (np.exp(2.0 * x / 1.5) + 1.0))


def test_the_usual_cap_is_that_of_gemma_2():
    assert Activation("cap", "softcap").alpha == 30.0


class TestGeluTanh(ActivationCase):
    mode = "gelu_tanh"

    def expected(self, params, x):
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


class TestFeatures(ActivationCase):
    in_shapes = (7,)
    mode = "relu"

    def expected(self, params, x):
        return np.where(x > 0, x, 0.0)


MODES = list(ACTIVATIONS)


@pytest.mark.parametrize("mode", ["relu", "sigmoid", "selu", "gelu"])
def test_an_alpha_of_a_function_that_has_none_is_refused(mode):
    with pytest.raises(ArgumentError, match=f"layer 'act', argument alpha.*alpha=0.1 of {mode}"):
        Activation("act", mode, alpha=0.1)


def run(mode, x, dy=None, alpha=None):
    layer = Activation("act", mode, alpha=alpha)
    layer.build(x.shape[1:])
    ctx = Context(numpy_ops, np.random.default_rng(0), {}, True)
    y = layer.forward(ctx, x)
    return y, layer.backward(ctx, np.ones_like(x) if dy is None else dy)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_stays_finite_and_in_its_type_for_extreme_inputs(mode, dtype):
    largest = float(np.finfo(dtype).max)
    if mode == "selu":
        largest /= 2  # Which it multiplies by 1.05.
    x = np.array([[-largest, -1e4, -100, -20, -0.0, 0.0, 20, 100, 1e4, largest]], dtype)
    y, dx = run(mode, x)
    assert y.dtype == dx.dtype == dtype
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    top = {"sigmoid": 1, "tanh": 1, "relu6": 6, "hard_sigmoid": 1, "softsign": 1, "softcap": 30}
    scale = 1.0507009873554805 if mode == "selu" else 1.0
    rtol = 2e-4 if mode == "softsign" else 2 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y[0, -2], top.get(mode, scale * x[0, -2]), rtol=rtol)
    np.testing.assert_allclose(dx[0, -1], 0 if mode in top else scale, rtol=rtol, atol=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_nan_passes_through(mode):
    y, _ = run(mode, np.array([[np.nan, 1.0]]))
    assert np.isnan(y[0, 0])
    assert np.isfinite(y[0, 1])


def test_the_slope_of_relu_at_zero_is_zero():
    """As in SINGA, whose derivative asks for x > 0."""
    _, dx = run("relu", np.array([[-1.0, -0.0, 0.0, 1.0]]))
    np.testing.assert_array_equal(dx, [[0, 0, 0, 1]])


def test_relu_backward_multiplies_by_the_gradient():
    """SINGA's CPU kernel forgot dy below zero."""
    _, dx = run("relu", np.array([[-3.0, 2.0]]), np.array([[5.0, 7.0]]))
    np.testing.assert_array_equal(dx, [[0, 7]])


def test_gelu_keeps_relative_accuracy_in_its_left_tail():
    """1 + erf would cancel there: Φ(−4) = 3.167124e-5."""
    x = np.linspace(-5.0, -1.0, 41, dtype=np.float32)[None]
    y, _ = run("gelu", x)
    exact = [t * 0.5 * math.erfc(-t / math.sqrt(2.0)) for t in x[0].astype(float)]
    np.testing.assert_allclose(y[0], exact, rtol=2e-5)


@pytest.mark.parametrize("mode", MODES)
def test_agrees_with_pytorch(mode):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    names = {"hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish"}
    peers = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}
    peers["softcap"] = lambda x: 30.0 * torch.tanh(x / 30.0)
    peers["gelu_tanh"] = partial(functional.gelu, approximate="tanh")
    peer = peers.get(mode) or getattr(functional, names.get(mode, mode))
    x = (3.0 * np.random.default_rng(7).standard_normal((5, 40))).astype(np.float32)
    dy = np.random.default_rng(8).standard_normal(x.shape).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    theirs = peer(leaf)
    theirs.backward(torch.tensor(dy))
    y, dx = run(mode, x, dy)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_output_shape_of_singa():
    layer = Activation("act", input_sample_shape=(64, 1, 12))
    assert layer.get_output_sample_shape() == (64, 1, 12)
    assert layer.mode == "relu"


@pytest.mark.parametrize(
    ("mode", "message"),
    [("rleu", "did you mean 'relu'"), (3, "'relu'"), (["relu"], "'relu'")],
)
def test_refuses_an_unknown_mode(mode, message):
    with pytest.raises(UnknownNameError, match=f"layer 'act', argument mode: expected.*{message}"):
        Activation("act", mode)


@pytest.mark.parametrize("alpha", ["0.1", float("nan"), float("inf"), [0.1]])
def test_refuses_a_bad_alpha(alpha):
    with pytest.raises(ArgumentError, match="layer 'act', argument alpha: expected"):
        Activation("act", "elu", alpha=alpha)


def test_refuses_a_celu_without_width():
    with pytest.raises(ArgumentError, match="layer 'act', argument alpha: expected.*positive"):
        Activation("act", "celu", alpha=0)
    with pytest.raises(ArgumentError, match="layer 'act', argument alpha: expected.*positive"):
        Activation("act", "softcap", alpha=-30.0)


def test_refuses_several_inputs():
    with pytest.raises(ValueError, match="layer 'act': expected one input; received"):
        Activation("act").build([(3,), (3,)])


def test_a_name_decides_nothing_beside_a_function():
    assert Activation("mish", "relu").mode == "relu"
    assert [Activation(f"relu{k}").mode for k in range(8)] == ["relu"] * 8
    assert (Activation("mish").mode, Activation("mish").to_config()["arguments"]["mode"]) == (
        "mish",
    ) * 2
    assert Activation("relu6", "relu6").mode == "relu6"


@pytest.mark.parametrize("name", ["softmax", "linear", "swish", "exponential"])
def test_a_function_of_others_alone_is_no_relu_of_that_name(name):
    with pytest.raises(ArgumentError, match=f"the name of another function, '{name}'"):
        Activation(name)
    assert Activation(name, "tanh").mode == "tanh"
