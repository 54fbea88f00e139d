"""ClassToken."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import ClassToken
from singanet.testing import LayerCase


class TestClassToken(LayerCase):
    in_shapes = (4, 3)

    def make(self):
        return ClassToken("token")

    def expected(self, params, x):
        return np.stack([np.vstack([params["weight"], sample]) for sample in x])


class TestRegisters(TestClassToken):
    def make(self):
        return ClassToken("tokens", 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_agrees_with_a_token_expanded_in_pytorch(dtype, rng):
    torch = pytest.importorskip("torch")
    case, x = TestRegisters(), rng.standard_normal((5, 4, 3)).astype(dtype)
    dy = rng.standard_normal((5, 7, 3)).astype(dtype)
    layer = case.built(dtype=dtype)
    token = torch.tensor(layer.params["weight"].value, requires_grad=True)
    given = torch.tensor(x, requires_grad=True)
    theirs = torch.cat([token.expand(5, 3, 3), given], dim=1)
    theirs.backward(torch.tensor(dy))
    ctx, y = case.run(layer, x, True)
    dx, grads = case.run_backward(layer, ctx, dy)
    np.testing.assert_array_equal(y, theirs.detach().numpy(), strict=True)
    np.testing.assert_array_equal(dx, given.grad.numpy(), strict=True)
    np.testing.assert_allclose(grads["weight"], token.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_starts_small_and_takes_specs():
    layer = ClassToken("token", 40)
    layer.build((None, 50))
    assert layer.params["weight"].value.std() == pytest.approx(0.02, rel=0.06)
    layer = ClassToken("token", W_specs={"init": "constant", "value": 2.0})
    layer.build((7, 5))
    assert (layer.params["weight"].value == 2).all()


def test_sequences_of_any_length():
    net = FeedForwardNet([ClassToken("token", input_sample_shape=(None, 2))], seed=0)
    for steps in (1, 6):
        out = net.forward(False, np.ones((2, steps, 2), np.float32))
        assert out.shape == (2, steps + 1, 2)
        assert (out[:, 1:] == 1).all()


def test_refuses_what_is_no_sequence_and_no_count():
    with pytest.raises(ShapeError, match=r"\(time, features\)"):
        ClassToken("token").build((3,))
    with pytest.raises(ArgumentError, match="argument count"):
        ClassToken("token", 0)
