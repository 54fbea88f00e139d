"""GatedUnit: SwiGLU and its kin."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Activation, Dense, GatedUnit, Multiply
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.testing import LayerCase

FUNCTIONS = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: x * (1.0 + np.vectorize(erf)(x / np.sqrt(2.0))) / 2.0,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}


class GatedCase(LayerCase):
    in_shapes = (3, 4)

    def expected(self, params, x):
        p, mode = params, self.make().mode
        gate = x @ p["gate_weight"] + p.get("gate_bias", 0.0)
        h = FUNCTIONS[mode](gate) * (x @ p["up_weight"] + p.get("up_bias", 0.0))
        return h @ p["down_weight"] + p.get("down_bias", 0.0) if "down_weight" in p else h


class TestSwiGLU(GatedCase):
    def make(self):
        return GatedUnit("ffn", 5, 4)


class TestGeGLUWithBiases(GatedCase):
    def make(self):
        return GatedUnit("ffn", 5, 3, mode="gelu", use_bias=True)


class TestByTanhWithoutDown(GatedCase):
    in_shapes = (4,)

    def make(self):
        return GatedUnit("ffn", 5, mode="gelu_tanh")


class TestWhoseDerivativeIsOfTheOutput(GatedCase):
    def make(self):
        return GatedUnit("ffn", 5, 2, mode="sigmoid")


def test_parameters_have_names_shapes_and_order():
    layer = GatedUnit("ffn", 5, 3, use_bias=True)
    assert layer.build((None, 4)) == (-1, 3)
    assert {name: param.shape for name, param in layer.params.items()} == {
        "gate_weight": (4, 5), "gate_bias": (5,), "up_weight": (4, 5), "up_bias": (5,),
        "down_weight": (5, 3), "down_bias": (3,),
    }  # fmt: skip
    assert list(GatedUnit("ffn", 5).params) == []


def both(seed=0):
    """A net of the layer, and one of the layers that it stands for, with the same parameters."""
    x = Input("x", (6, 4))
    one = FeedForwardNet(inputs=x, outputs=GatedUnit("ffn", 8, 4)(x), loss=SquaredError())
    z = Input("x", (6, 4))
    gate = Activation("act", "silu")(Dense("gate", 8, use_bias=False)(z))
    y = Dense("down", 4, use_bias=False)(Multiply("mul")(gate, Dense("up", 8, use_bias=False)(z)))
    other = FeedForwardNet(inputs=z, outputs=y, loss=SquaredError(), seed=seed)
    for part in ("gate", "up", "down"):
        one["ffn"].params[f"{part}_weight"].value[...] = other[part].params["weight"].value
    return one, other


def test_steps_equal_those_of_separate_layers(rng):
    one, other = both()
    for _ in range(4):
        x, y = (rng.standard_normal((5, 6, 4)).astype(np.float32) for _ in range(2))
        losses = [net.step(x, y, SGD(lr=0.1))[0] for net in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for part in ("gate", "up", "down"):
        got, want = one["ffn"].params[f"{part}_weight"], other[part].params["weight"]
        np.testing.assert_allclose(got.value, want.value, rtol=1e-4, atol=1e-6)


def test_equals_llamas_in_transformers(rng):
    torch = pytest.importorskip("torch")
    m = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = m.LlamaMLP(m.LlamaConfig(hidden_size=6, intermediate_size=10, num_attention_heads=2))
    layer = GatedUnit("ffn", 10, 6)
    layer.build((6,))
    for part in ("gate", "up", "down"):
        weight = getattr(theirs, f"{part}_proj").weight
        layer.params[f"{part}_weight"].value[...] = weight.detach().numpy().T
    x, dy = (rng.standard_normal((7, 6)).astype(np.float32) for _ in range(2))
    tx = torch.tensor(x, requires_grad=True)
    ty = theirs(tx)
    ty.backward(torch.tensor(dy))
    ctx, y = LayerCase().run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(y, ty.detach().numpy(), **close)
    np.testing.assert_allclose(dx, tx.grad.numpy(), **close)
    for part in ("gate", "up", "down"):
        want = getattr(theirs, f"{part}_proj").weight.grad.numpy().T
        np.testing.assert_allclose(grads[f"{part}_weight"], want, **close)


@pytest.mark.parametrize("given", [{"units": 0}, {"units": 1.5}, {"output_dim": 0}])
def test_refuses_bad_numbers(given):
    with pytest.raises(ArgumentError, match=f"'ffn', argument {next(iter(given))}: expected"):
        GatedUnit("ffn", **{"units": 4, **given})


@pytest.mark.parametrize("mode", ["swiglu", "leaky_relu", None, []])
def test_refuses_unknown_functions(mode):
    with pytest.raises(UnknownNameError, match="'ffn', argument mode: expected '"):
        GatedUnit("ffn", 4, mode=mode)


@pytest.mark.parametrize("shape", [(), (3, None), [(3,), (3,)]])
def test_refuses_inputs_without_features(shape):
    with pytest.raises(ShapeError, match="layer 'ffn': expected one input of sample shape"):
        GatedUnit("ffn", 4).build(shape)
