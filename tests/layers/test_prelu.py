"""PReLU."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import PReLU
from singanet.testing import LayerCase


class TestPReLU(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return PReLU("prelu")

    def expected(self, params, x):
        return np.maximum(x, 0) + np.einsum("nchw,c->nchw", np.minimum(x, 0), params["a"])


class TestPReLUOfFeatures(LayerCase):
    in_shapes = (5,)

    def make(self):
        return PReLU("prelu")

    def expected(self, params, x):
        return np.maximum(x, 0) + params["a"] * np.minimum(x, 0)


class TestPReLUShared(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return PReLU("prelu", channel_shared=True)

    def expected(self, params, x):
        return np.maximum(x, 0) + params["a"].item() * np.minimum(x, 0)


def test_slopes_start_at_a_quarter():
    layer = PReLU("prelu", input_sample_shape=(2, 3, 3))
    layer.get_output_sample_shape()
    assert layer.param_names() == ["prelu/a"]
    assert layer.param_values()[0].tolist() == [0.25, 0.25]


def test_refuses_samples_without_channels():
    with pytest.raises(ShapeError, match=r"layer 'prelu': expected samples of shape \(channels"):
        PReLU("prelu").build(())


@pytest.mark.parametrize("shared", [False, True])
def test_equals_pytorch(shared, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: PReLU("prelu", channel_shared=shared)
    case.in_shapes = (4, 5, 6)
    layer = case.built()
    x = rng.standard_normal((8, 4, 5, 6)).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    xt = torch.from_numpy(x).requires_grad_()
    a = torch.from_numpy(layer.param_values()[0]).requires_grad_()
    yt = torch.nn.functional.prelu(xt, a)
    yt.backward(torch.from_numpy(dy))
    for got, want in zip([y, dx, grads["a"]], [yt.detach(), xt.grad, a.grad], strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
