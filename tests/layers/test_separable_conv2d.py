"""SeparableConv2D."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import SeparableConv1D, SeparableConv2D
from singanet.testing import LayerCase


class TestSeparableConv2D(LayerCase):
    in_shapes = (2, 5, 4)

    def make(self):
        return SeparableConv2D("sep", 3, (3, 2), (2, 1), "valid", depth_multiplier=2)

    def expected(self, params, x):
        seen = sliding_window_view(x, (3, 2), axis=(2, 3))[:, :, ::2]
        depthwise = params["depthwise_weight"].reshape(2, 2, 3, 2)
        inner = np.einsum("ncijab,cmab->ncmij", seen, depthwise)
        pointwise = params["pointwise_weight"].reshape(3, 2, 2)
        return np.einsum("ncmij,fcm->nfij", inner, pointwise) + params["bias"][:, None, None]


class TestSeparableConv2DOfOneChannel(LayerCase):
    in_shapes = (1, 5, 4)

    def make(self):
        return SeparableConv2D("sep", 2, 3, border_mode="valid", use_bias=False)

    def expected(self, params, x):
        seen = sliding_window_view(x[:, 0], (3, 3), axis=(1, 2))
        inner = np.einsum("nijab,ab->nij", seen, params["depthwise_weight"].reshape(3, 3))
        return params["pointwise_weight"].reshape(2)[:, None, None] * inner[:, None]


class TestSeparableConv1D(LayerCase):
    in_shapes = (2, 5)

    def make(self):
        return SeparableConv1D("sep", 3, 2, 1, "causal", depth_multiplier=2, dilation=2)

    def expected(self, params, x):
        seen = np.stack([np.pad(x, ((0, 0), (0, 0), (2, 0)))[..., k : k + 5] for k in (0, 2)])
        inner = np.einsum("kncl,cmk->ncml", seen, params["depthwise_weight"].reshape(2, 2, 2))
        pointwise = params["pointwise_weight"].reshape(3, 2, 2)
        return np.einsum("ncml,fcm->nfl", inner, pointwise) + params["bias"][:, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_the_two_convolutions_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    case = LayerCase()
    case.make = lambda: SeparableConv2D("sep", 6, 3, 2, pad=2, dilation=2, use_bias=False)
    case.in_shapes = (4, 9, 8)
    layer = case.built(dtype=dtype)
    x = rng.standard_normal((2, 4, 9, 8)).astype(dtype)
    ctx, y = case.run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(dtype)
    dx, grads = layer.backward(ctx, dy)
    leaf, depth, point = (torch.tensor(a, requires_grad=True) for a in (x, *layer.param_values()))
    conv2d = torch.nn.functional.conv2d
    inner = conv2d(leaf, depth.reshape(4, 1, 3, 3), None, 2, 2, 2, groups=4)
    wanted = conv2d(inner, point.reshape(6, 4, 1, 1))
    wanted.backward(torch.tensor(dy))
    pairs = [(y, wanted.detach()), (dx, leaf.grad), (grads["depthwise_weight"], depth.grad),
             (grads["pointwise_weight"], point.grad)]  # fmt: skip
    for got, want in pairs:
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-4)


def test_refuses_bad_arguments_and_shapes():
    with pytest.raises(ArgumentError, match="'sep', argument depth_multiplier"):
        SeparableConv2D("sep", 3, depth_multiplier=0)
    with pytest.raises(ShapeError, match=r"'sep': .*\(channels, height, width\)"):
        SeparableConv2D("sep", 3).build((4, 5))
