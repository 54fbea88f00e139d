"""Upsampling2D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Upsampling2D
from singanet.testing import LayerCase


def bilinear(x, factors):
    """Each output pixel from the four around its centre, coordinates kept on the image."""
    _, _, h, w = x.shape
    y = np.empty((*x.shape[:2], h * factors[0], w * factors[1]))
    for i, j in np.ndindex(*y.shape[2:]):
        row = min(max((i + 0.5) / factors[0] - 0.5, 0), h - 1)
        column = min(max((j + 0.5) / factors[1] - 0.5, 0), w - 1)
        top, left = int(row), int(column)
        below, right = min(top + 1, h - 1), min(left + 1, w - 1)
        down, across = row - top, column - left
        y[:, :, i, j] = (
            (1 - down) * ((1 - across) * x[:, :, top, left] + across * x[:, :, top, right])
            + down * ((1 - across) * x[:, :, below, left] + across * x[:, :, below, right])
        )  # fmt: skip
    return y


class TestNearest(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Upsampling2D("up", (2, 3))

    def expected(self, params, x):
        return np.kron(x, np.ones((2, 3)))


class TestBilinear(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Upsampling2D("up", (2, 3), interpolation="bilinear")

    def expected(self, params, x):
        return bilinear(x, (2, 3))


class TestBilinearOfOnePixel(LayerCase):
    in_shapes = (2, 1, 2)

    def make(self):
        return Upsampling2D("up", 4, interpolation="bilinear")

    def expected(self, params, x):
        return bilinear(x, (4, 4))


def test_refuses_bad_arguments_and_shapes():
    with pytest.raises(
        UnknownNameError, match=r"'up', argument interpolation: .*did you mean 'bilinear'"
    ):
        Upsampling2D("up", mode="bilinaer")
    with pytest.raises(ArgumentError, match=r"'up', argument size: expected an int or a pair"):
        Upsampling2D("up", 1.5)
    with pytest.raises(ShapeError, match=r"'up': expected .*\(channels, height, width\)"):
        Upsampling2D("up").build((3, 4))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("factors", [(2, 2), (3, 5)])
def test_equals_pytorch(mode, factors, rng):
    torch = pytest.importorskip("torch")
    layer = Upsampling2D("up", factors, mode=mode, input_sample_shape=(3, 5, 6))
    layer.get_output_sample_shape()
    x = rng.standard_normal((2, 3, 5, 6)).astype(np.float32)
    ctx, y = LayerCase().run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx, _ = layer.backward(ctx, dy)
    xt = torch.from_numpy(x).requires_grad_()
    yt = torch.nn.functional.interpolate(xt, scale_factor=factors, mode=mode)
    yt.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, yt.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, xt.grad.numpy(), rtol=1e-5, atol=1e-5)
