"""Conv3D, MaxPooling3D and AvgPooling3D."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import AvgPooling3D, Context, Conv3D, Conv3DTranspose, MaxPooling3D
from singanet.ops import numpy_ops, ops_for
from singanet.testing import LayerCase


def windows(x, extent, stride, dilation=(1, 1, 1)):
    """(N, C, D', H', W', kd, kh, kw) of what is padded already."""
    found = sliding_window_view(x, extent, axis=(2, 3, 4))
    steps = tuple(slice(None, None, s) for s in (*stride, *dilation))
    return found[(slice(None), slice(None), *steps)]


class TestConv3D(LayerCase):
    in_shapes = (2, 4, 3, 5)

    def make(self):
        return Conv3D("conv", 3, (3, 1, 2))

    def expected(self, params, x):
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0), (0, 1)))
        weight = params["weight"].reshape(3, 2, 3, 1, 2)
        y = np.einsum("ncijkabd,fcabd->nfijk", windows(x, (3, 1, 2), (1, 1, 1)), weight)
        return y + params["bias"][:, None, None, None]


class TestConv3DOfEverything(LayerCase):
    """A group a channel, strides, distances, and a border that goes round."""

    in_shapes = (2, 5, 4, 3)

    def make(self):
        return Conv3D(
            "conv", 4, (2, 2, 1), (2, 1, 2), pad=((1, 2), 0, (0, 1)), dilation=(2, 1, 1),
            groups=2, use_bias=False, padding_mode="circular",
        )  # fmt: skip

    def expected(self, params, x):
        x = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 0), (0, 1)), mode="wrap")
        seen = windows(x, (3, 2, 1), (2, 1, 2), (2, 1, 1))
        weight = params["weight"].reshape(2, 2, 2, 2, 1)
        y = np.einsum("ngijkabd,gmabd->ngmijk", seen, weight)
        return y.reshape(len(x), 4, *y.shape[3:])


class TestConv3DTranspose(LayerCase):
    in_shapes = (4, 2, 3, 2)

    def make(self):
        return Conv3DTranspose("up", 6, (2, 3, 1), (2, 1, 3), "valid", groups=2)

    def expected(self, params, x):
        weight = params["weight"].reshape(2, 2, 3, 2, 3, 1)
        y = np.zeros((len(x), 2, 3, 4, 5, 4))
        for i, j, k in np.ndindex(2, 3, 2):
            spread = np.einsum(
                "ngc,gcfabd->ngfabd", x.reshape(-1, 2, 2, 2, 3, 2)[..., i, j, k], weight
            )
            y[..., 2 * i : 2 * i + 2, j : j + 3, 3 * k : 3 * k + 1] += spread
        return y.reshape(len(x), 6, 4, 5, 4) + params["bias"][:, None, None, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transposed_agrees_with_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    given = {"stride": (2, 1, 3), "output_padding": (1, 0, 2), "dilation": (1, 2, 1), "groups": 2}
    x = rng.standard_normal((2, 4, 3, 4, 5)).astype(dtype)
    theirs = torch.nn.ConvTranspose3d(4, 6, (3, 2, 3), padding=(1, 0, 1), **given)
    theirs.to(getattr(torch, x.dtype.name))
    leaf = torch.tensor(x, requires_grad=True)
    wanted = theirs(leaf)
    dy = rng.standard_normal(wanted.shape).astype(dtype)
    wanted.backward(torch.tensor(dy))
    layer = Conv3DTranspose("up", 6, (3, 2, 3), pad=(1, 0, 1), **given)
    layer.build(x.shape[1:])
    weight, bias = (p.detach().numpy() for p in (theirs.weight, theirs.bias))
    params = {"weight": weight.reshape(4, -1), "bias": bias}
    peers = [wanted.detach(), leaf.grad, theirs.weight.grad.reshape(4, -1), theirs.bias.grad]
    for ops in (numpy_ops, ops_for(x)):
        y, dx, grads = run(layer, ops, x, dy, params)
        for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-4)


class TestMaxPooling3D(LayerCase):
    in_shapes = (2, 4, 3, 5)

    def make(self):
        return MaxPooling3D("pool", (2, 3, 1), (1, 2, 2), pad=((1, 0), 0, 0))

    def draw(self, rng, batch):
        shape = (batch, *self.in_shapes)
        return rng.permutation(int(np.prod(shape))).reshape(shape) / 10.0 - 1000

    def expected(self, params, x):
        x = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)), constant_values=-np.inf)
        return windows(x, (2, 3, 1), (1, 2, 2)).max(axis=(5, 6, 7))


class TestAvgPooling3D(LayerCase):
    in_shapes = (2, 4, 3, 5)

    def make(self):
        return AvgPooling3D("pool", 2, pad=(0, 1, 0), count_include_pad=True)

    def expected(self, params, x):
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (0, 0)))
        return windows(x, (2, 2, 2), (2, 2, 2)).mean(axis=(5, 6, 7))


def run(layer, ops, x, dy, params):
    ctx = Context(ops, np.random.default_rng(0), params, True, keep=True)
    return layer.forward(ctx, x), *layer.backward(ctx, dy)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": (1, 2, 1), "padding": 1},
        {"groups": 2, "padding": (2, 0, 1), "dilation": (1, 2, 1)},
        {"groups": 4, "padding": 1, "stride": 2, "padding_mode": "reflect"},
        # Outer windows that meet padding alone.
        {"padding": (4, 0, 0)},
    ],
)
def test_agrees_with_pytorch(dtype, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 6, 7, 5)).astype(dtype)
    theirs = torch.nn.Conv3d(4, 8, 3, dtype=getattr(torch, x.dtype.name), **options)
    leaf = torch.tensor(x, requires_grad=True)
    wanted = theirs(leaf)
    dy = (rng.standard_normal(wanted.shape) / 10).astype(dtype)
    wanted.backward(torch.tensor(dy))
    ours = {"pad" if key == "padding" else key: value for key, value in options.items()}
    layer = Conv3D("conv", 8, 3, **ours)
    layer.build(x.shape[1:])
    weight, bias = (p.detach().numpy() for p in (theirs.weight, theirs.bias))
    params = {"weight": weight.reshape(8, -1), "bias": bias}
    peers = [wanted.detach(), leaf.grad, theirs.weight.grad.reshape(8, -1), theirs.bias.grad]
    for ops in (numpy_ops, ops_for(x)):
        y, dx, grads = run(layer, ops, x, dy, params)
        for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_agrees_with_pytorch(dtype, ceil):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 6, 7, 5)).astype(dtype)
    given = {"pad": (0, 1, 1), "ceil_mode": ceil}
    pairs = [
        (MaxPooling3D("pool", (2, 3, 2), 2, **given),
         torch.nn.MaxPool3d((2, 3, 2), 2, (0, 1, 1), ceil_mode=ceil)),
        (AvgPooling3D("pool", (2, 3, 2), count_include_pad=True, **given),
         torch.nn.AvgPool3d((2, 3, 2), None, (0, 1, 1), ceil)),
    ]  # fmt: skip
    for layer, theirs in pairs:
        leaf = torch.tensor(x, requires_grad=True)
        wanted = theirs(leaf)
        dy = rng.standard_normal(wanted.shape).astype(dtype)
        wanted.backward(torch.tensor(dy))
        layer.build(x.shape[1:])
        for ops in (numpy_ops, ops_for(x)):
            y, dx, _ = run(layer, ops, x, dy, {})
            np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_refuses_images_and_pairs():
    with pytest.raises(ShapeError, match=r"'conv': .*\(channels, depth, height, width\)"):
        Conv3D("conv", 2).build((3, 4, 5))
    with pytest.raises(
        ArgumentError, match=r"'conv', argument kernel_size: expected an int or 3 of"
    ):
        Conv3D("conv", 2, (3, 3))
    with pytest.raises(ArgumentError, match=r"'pool', argument padding: expected"):
        MaxPooling3D("pool", 2, pad=(1, 1))
