"""Conv2DTranspose."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Conv2D, Conv2DTranspose
from singanet.testing import LayerCase


def by_loops(x, weight, stride, pads, extra, dilation=(1, 1), groups=1):
    """x (N, C, H, W), weight (C, F/groups, kh, kw): every pixel stamps its kernel."""
    n, c, h, w = x.shape
    _, fg, kh, kw = weight.shape
    height = (h - 1) * stride[0] + dilation[0] * (kh - 1) + 1 + extra[0]
    width = (w - 1) * stride[1] + dilation[1] * (kw - 1) + 1 + extra[1]
    full = np.zeros((n, fg * groups, height, width))
    for channel, i, j, a, b in np.ndindex(c, h, w, kh, kw):
        first = channel // (c // groups) * fg
        pixel = x[:, channel, i, j]
        row, column = i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]
        full[:, first : first + fg, row, column] += np.outer(pixel, weight[channel, :, a, b])
    (top, bottom), (left, right) = pads
    return full[:, :, top : height - bottom, left : width - right]


class TestConv2DTranspose(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Conv2DTranspose("up", 3)

    def expected(self, params, x):
        weight = params["weight"].reshape(2, 3, 3, 3)
        y = by_loops(x, weight, (1, 1), ((1, 1), (1, 1)), (0, 0))
        return y + params["bias"][:, None, None]


class TestConv2DTransposeStrided(LayerCase):
    """'same' gives the input's size times the stride."""

    in_shapes = (2, 3, 4)

    def make(self):
        return Conv2DTranspose("up", 2, kernel=4, stride=(2, 3), use_bias=False)

    def expected(self, params, x):
        weight = params["weight"].reshape(2, 2, 4, 4)
        y = by_loops(x, weight, (2, 3), ((1, 2), (1, 2)), (1, 2))
        assert y.shape[2:] == (6, 12)
        return y


class TestConv2DTransposeInGroups(LayerCase):
    in_shapes = (4, 3, 3)

    def make(self):
        return Conv2DTranspose(
            "up", 6, (2, 3), 3, pad=(1, 0), output_padding=(2, 0), dilation=2, groups=2
        )

    def expected(self, params, x):
        weight = params["weight"].reshape(4, 3, 2, 3)
        y = by_loops(x, weight, (3, 3), ((1, 1), (0, 0)), (2, 0), (2, 2), 2)
        return y + params["bias"][:, None, None]


def test_it_is_the_transpose_of_the_convolution(rng):
    up = Conv2DTranspose("up", 3, 3, 2, use_bias=False, input_sample_shape=(5, 4, 4))
    assert up.get_output_sample_shape() == (3, 8, 8)
    down = Conv2D(
        "down", 5, 3, 2, use_bias=False, W_specs=up.params["weight"], input_sample_shape=(3, 8, 8)
    )
    assert down.get_output_sample_shape() == (5, 4, 4)
    case = LayerCase()
    for layer in (up, down):
        layer.params["weight"].retype(rng.standard_normal((5, 27)))
    down.params["weight"].retype(up.params["weight"].value)
    x, z = rng.standard_normal((2, 5, 4, 4)), rng.standard_normal((2, 3, 8, 8))
    _, y = case.run(up, x, train=False)
    _, c = case.run(down, z, train=False)
    # ⟨up x, z⟩ = ⟨x, down z⟩
    assert (y * z).sum() == pytest.approx((x * c).sum(), rel=1e-12)


def test_refuses_bad_arguments_and_shapes():
    with pytest.raises(ArgumentError, match=r"'up', argument output_padding: .*numbers below the"):
        Conv2DTranspose("up", 2, stride=2, output_padding=2)
    with pytest.raises(ArgumentError, match=r"'up', argument filters"):
        Conv2DTranspose("up", 0)
    with pytest.raises(ShapeError, match=r"'up': expected .*\(channels, height, width\)"):
        Conv2DTranspose("up", 2).build((3, 4))
    with pytest.raises(ShapeError, match=r"'up': expected .*divisible by groups=2.*3 channels"):
        Conv2DTranspose("up", 2, groups=2).build((3, 4, 4))
    with pytest.raises(ShapeError, match=r"'up': expected images larger than the padding"):
        Conv2DTranspose("up", 2, 3, pad=2).build((3, 2, 2))


@pytest.mark.parametrize(
    ("stride", "pad", "extra", "dilation", "groups"),
    [(1, 1, 0, 1, 1), (2, 1, 1, 1, 1), (3, 0, 2, 2, 2)],
)
def test_equals_pytorch(stride, pad, extra, dilation, groups, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: Conv2DTranspose(
        "up", 6, 3, stride, pad=pad, output_padding=extra, dilation=dilation, groups=groups
    )
    case.in_shapes = (4, 6, 7)
    layer = case.built()
    x = rng.standard_normal((4, 4, 6, 7)).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx, grads = layer.backward(ctx, dy)
    w, b = layer.param_values()
    xt, wt, bt = (
        torch.from_numpy(a).requires_grad_() for a in (x, w.reshape(4, 6 // groups, 3, 3), b)
    )
    yt = torch.nn.functional.conv_transpose2d(xt, wt, bt, stride, pad, extra, groups, dilation)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, wt.grad.reshape(4, -1), bt.grad]
    for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def of_keras(axes, kernel, stride, padding, extra, dilation, rng):
    """Outputs of Keras' layer and of ours by the same weights, channels first."""
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    size = (4, 5, 3)[:axes]
    x = rng.standard_normal((2, *size, 2)).astype(np.float32)
    peer = getattr(keras.layers, f"Conv{axes}DTranspose")(
        3, kernel, stride, padding, output_padding=extra, dilation_rate=dilation
    )
    wanted = np.asarray(peer(x).detach())
    mine = getattr(layers, f"Conv{axes}DTranspose")(
        "up", 3, kernel, stride, f"keras_{padding}", output_padding=extra, dilation=dilation
    )
    mine.build((2, *size))
    weight = np.moveaxis(np.asarray(peer.kernel), (-1, -2), (0, 1))
    mine.params["weight"].retype(weight.reshape(2, -1))
    _, y = LayerCase().run(mine, np.moveaxis(x, -1, 1).copy(), train=False)
    return y, np.moveaxis(wanted, -1, 1)


SETTINGS = [
    (kernel, stride, padding, extra, dilation)
    for kernel in range(1, 8)
    for stride in range(1, 6)
    for padding in ("same", "valid")
    for extra in (None, *range(min(stride, 3)))
    for dilation in ((1, 2) if stride == 1 else (1,))
]


@pytest.mark.parametrize("axes", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_pads_as_keras(axes, rng):
    """Every size, stride, mode, output_padding and dilation."""
    for setting in SETTINGS if axes == 1 else rng.permutation(len(SETTINGS))[:40]:
        given = setting if axes == 1 else SETTINGS[setting]
        y, wanted = of_keras(axes, *given, rng)
        np.testing.assert_allclose(y, wanted, atol=2e-5, err_msg=str(given))


def test_a_decoder_of_keras_by_its_file_of_weights(tmp_path, rng):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    x = rng.standard_normal((2, 4, 5, 3)).astype(np.float32)
    peer = keras.Sequential(
        [
            keras.Input((4, 5, 3)),
            keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
            keras.layers.Conv2DTranspose(2, (2, 5), strides=(3, 2), padding="same"),
        ]
    )
    peer.save_weights(tmp_path / "decoder.weights.h5")
    net = FeedForwardNet(
        [
            Conv2DTranspose("one", 4, 3, 2, border_mode="keras_same", input_sample_shape=(3, 4, 5)),
            Conv2DTranspose("two", 2, (2, 5), (3, 2), border_mode="keras_same"),
        ]
    )
    assert net.load(tmp_path / "decoder.weights.h5").complete
    y = net.predict(x.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(y.transpose(0, 2, 3, 1), peer.predict(x, verbose=0), atol=1e-5)
