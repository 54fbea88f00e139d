"""DepthwiseConv2D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import DepthwiseConv2D
from singanet.ops.numpy import windows
from singanet.testing import LayerCase


def by_loops(x, weight, stride, pads, dilation=(1, 1)):
    """x (N, C, H, W), weight (C, M, kh, kw)."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    c, m, kh, kw = weight.shape
    height = (x.shape[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (x.shape[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((len(x), c * m, height, width))
    for channel, multiple, i, j in np.ndindex(c, m, height, width):
        for a, b in np.ndindex(kh, kw):
            pixel = x[:, channel, i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]]
            y[:, channel * m + multiple, i, j] += weight[channel, multiple, a, b] * pixel
    return y


class TestDepthwiseConv2D(LayerCase):
    in_shapes = (3, 5, 4)

    def make(self):
        return DepthwiseConv2D("depth")

    def expected(self, params, x):
        y = by_loops(x, params["weight"].reshape(3, 1, 3, 3), (1, 1), ((1, 1), (1, 1)))
        return y + params["bias"][:, None, None]


class TestDepthwiseConv2DWithMultiples(LayerCase):
    in_shapes = (2, 7, 6)

    def make(self):
        return DepthwiseConv2D(
            "depth", (2, 3), (2, 1), depth_multiplier=3, use_bias=False, pad=(0, 2), dilation=(3, 1)
        )

    def expected(self, params, x):
        weight = params["weight"].reshape(2, 3, 2, 3)
        return by_loops(x, weight, (2, 1), ((0, 0), (2, 2)), (3, 1))


class TestDepthwiseConv2DInBands(TestDepthwiseConv2DWithMultiples):
    """Scratch for a single row of outputs, so that every block has its edges."""

    @pytest.fixture(autouse=True)
    def _small_scratch(self, monkeypatch):
        monkeypatch.setattr(windows, "SCRATCH_BYTES", 1)


class TestDepthwiseConv2DOfASize1Image(LayerCase):
    in_shapes = (4, 1, 1)

    def make(self):
        return DepthwiseConv2D("depth", 1, use_bias=False)

    def expected(self, params, x):
        return x * params["weight"][:, :, None]


class TestDepthwiseConv2DOfOneChannel(LayerCase):
    """Without padding, so that windows are views of the image as it came."""

    in_shapes = (1, 4, 5)
    kernel, stride = (3, 2), (1, 1)

    def make(self):
        return DepthwiseConv2D("depth", self.kernel, self.stride, "valid", use_bias=False)

    def expected(self, params, x):
        weight = params["weight"].reshape(1, 1, *self.kernel)
        return by_loops(x, weight, self.stride, ((0, 0), (0, 0)))


class TestDepthwiseConv2DOfOneChannelAndPixels(TestDepthwiseConv2DOfOneChannel):
    kernel = (1, 1)


class TestDepthwiseConv2DOfOneChannelAndColumn(TestDepthwiseConv2DOfOneChannel):
    in_shapes, kernel, stride = (1, 6, 2), (2, 2), (2, 1)


def test_parameters_and_shape():
    layer = DepthwiseConv2D("depth", 5, 2, depth_multiplier=2, input_sample_shape=(8, 9, 9))
    assert layer.get_output_sample_shape() == (16, 5, 5)
    assert [(p.name, p.shape) for p in layer.params.values()] == [
        ("depth/weight", (16, 25)),
        ("depth/bias", (16,)),
    ]


def test_refuses_bad_arguments_and_shapes():
    with pytest.raises(ArgumentError, match=r"'depth', argument depth_multiplier"):
        DepthwiseConv2D("depth", depth_multiplier=0)
    with pytest.raises(ShapeError, match=r"'depth': expected .*\(channels, height, width\)"):
        DepthwiseConv2D("depth").build((3, 4))
    with pytest.raises(ShapeError, match=r"'depth': expected images at least as large"):
        DepthwiseConv2D("depth", 5, border_mode="valid").build((3, 4, 4))


@pytest.mark.parametrize(("multiplier", "stride"), [(1, 1), (1, 2), (3, 2)])
def test_equals_pytorch(multiplier, stride, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: DepthwiseConv2D("depth", 3, stride, depth_multiplier=multiplier, pad=1)
    case.in_shapes = (8, 15, 13)
    layer = case.built()
    x = rng.standard_normal((4, 8, 15, 13)).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx, grads = layer.backward(ctx, dy)
    w, b = layer.param_values()
    xt, wt, bt = (torch.from_numpy(a).requires_grad_() for a in (x, w.reshape(-1, 1, 3, 3), b))
    yt = torch.nn.functional.conv2d(xt, wt, bt, stride, 1, groups=8)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, wt.grad.reshape(-1, 9), bt.grad]
    for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
