"""InstanceNorm."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import InstanceNorm
from singanet.testing import LayerCase


class TestInstanceNorm(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return InstanceNorm("norm")

    def expected(self, params, x):
        rows = x.reshape(len(x), 3, 8)
        centred = rows - np.einsum("ncp->nc", rows)[..., None] / 8
        spread = np.einsum("ncp,ncp->nc", centred, centred)[..., None] / 8
        y = centred / np.sqrt(spread + 1e-5) * params["gamma"][:, None] + params["beta"][:, None]
        return y.reshape(x.shape)


class TestInstanceNormOfSequences(LayerCase):
    in_shapes = (3, 5)

    def make(self):
        return InstanceNorm("norm", affine=False, epsilon=0.2)

    def expected(self, params, x):
        return (x - x.mean(axis=2, keepdims=True)) / np.sqrt(x.var(axis=2, keepdims=True) + 0.2)


@pytest.mark.parametrize("shape", [(3,), (), (3, 0), [(3, 4), (3, 4)]])
def test_refuses_samples_without_positions(shape):
    with pytest.raises(ShapeError, match=r"layer 'norm': expected .*\(channels, positions"):
        InstanceNorm("norm").build(shape)


def test_equals_pytorch(rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: InstanceNorm("norm")
    case.in_shapes = (8, 7, 9)
    layer = case.built()
    x = (3 * rng.standard_normal((4, 8, 7, 9)) + 1).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    xt, gamma, beta = (torch.from_numpy(a).requires_grad_() for a in (x, *layer.param_values()))
    yt = torch.nn.functional.instance_norm(xt, weight=gamma, bias=beta)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, gamma.grad, beta.grad]
    for got, want in zip([y, dx, grads["gamma"], grads["beta"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
