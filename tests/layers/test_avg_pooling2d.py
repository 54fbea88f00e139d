"""AvgPooling2D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import AvgPooling2D
from singanet.layers.context import Context
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


def mean_on_the_image(x, kernel=(3, 3), stride=(2, 2), pads=((1, 1), (1, 1))):
    """The mean of each window cut to the image, position by position."""
    (h, w), ((top, bottom), (left, right)) = x.shape[2:], pads
    rows = (h + top + bottom - kernel[0]) // stride[0] + 1
    columns = (w + left + right - kernel[1]) // stride[1] + 1
    y = np.empty((*x.shape[:2], rows, columns))
    for i in range(rows):
        for j in range(columns):
            a, b = i * stride[0] - top, j * stride[1] - left
            part = x[:, :, max(a, 0) : a + kernel[0], max(b, 0) : b + kernel[1]]
            y[:, :, i, j] = part.mean(axis=(2, 3))
    return y


class AvgCase(LayerCase):
    in_shapes = (2, 7, 6)
    arguments: dict = {}
    geometry: dict = {}

    def make(self):
        return AvgPooling2D("pool", **self.arguments)

    def expected(self, params, x):
        return mean_on_the_image(x, **self.geometry)


class TestDefaults(AvgCase):
    pass


class TestStrideOne(AvgCase):
    arguments = {"stride": 1}
    geometry = {"stride": (1, 1)}


class TestDisjoint(AvgCase):
    arguments = {"kernel": 2, "border_mode": "valid"}
    geometry = {"kernel": (2, 2), "pads": ((0, 0), (0, 0))}


class TestGapsBetweenWindows(AvgCase):
    in_shapes = (2, 9, 8)
    arguments = {"kernel": (2, 1), "stride": 3, "border_mode": "valid"}
    geometry = {"kernel": (2, 1), "stride": (3, 3), "pads": ((0, 0), (0, 0))}


class TestEvenKernelSame(AvgCase):
    arguments = {"kernel": (4, 2), "stride": (3, 1)}
    geometry = {"kernel": (4, 2), "stride": (3, 1), "pads": ((1, 2), (0, 1))}


class TestPadOverridesBorderMode(AvgCase):
    arguments = {"kernel": (2, 3), "pad": (0, 2), "stride": (1, 2)}
    geometry = {"kernel": (2, 3), "pads": ((0, 0), (2, 2)), "stride": (1, 2)}


class TestWholeImage(AvgCase):
    arguments = {"kernel": (7, 6), "stride": 1, "border_mode": "valid"}
    geometry = {"kernel": (7, 6), "stride": (1, 1), "pads": ((0, 0), (0, 0))}


def run(layer, x, dy):
    layer.build(x.shape[1:])
    ctx = Context(numpy_ops, np.random.default_rng(0), {}, True)
    y = layer.forward(ctx, x)
    return y, layer.backward(ctx, dy)[0]


def test_values_by_hand():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    y, dx = run(AvgPooling2D("pool", 2, 1, "valid"), x,
                np.array([[[[4, 8], [12, 16]]]], np.float32))  # fmt: skip
    np.testing.assert_array_equal(y[0, 0], [[3, 4], [6, 7]])
    np.testing.assert_array_equal(dx[0, 0], [[1, 3, 2], [4, 10, 6], [3, 7, 4]])


def test_padding_is_not_counted():
    """As cuDNN in SINGA; its CPU divided by the padding as well."""
    y, dx = run(AvgPooling2D("pool", 3, 2), np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(y, np.ones((1, 1, 2, 2)))
    np.testing.assert_allclose(dx.sum(), 4.0, rtol=1e-12)


def test_output_shape_of_singa():
    layer = AvgPooling2D("pool", 3, 2, input_sample_shape=(64, 224, 224))
    assert layer.get_output_sample_shape() == (64, 112, 112)


def test_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    for kernel, stride, pad in [(3, 2, 1), (2, 2, 0), ((3, 2), (1, 2), (1, 0)), (5, 3, 2)]:
        x = rng.standard_normal((3, 4, 13, 11)).astype(np.float32)
        leaf = torch.tensor(x, requires_grad=True)
        theirs = torch.nn.functional.avg_pool2d(leaf, kernel, stride, pad, count_include_pad=False)
        dy = rng.standard_normal(theirs.shape).astype(np.float32)
        theirs.backward(torch.tensor(dy))
        y, dx = run(AvgPooling2D("pool", kernel, stride, pad=pad), x, dy)
        assert y.dtype == dx.dtype == np.float32
        np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [({"kernel": -2}, "kernel"), ({"stride": None}, "stride"), ({"pad": 0.5}, "pad"),
     ({"border_mode": None}, "border_mode"), ({"data_format": "CHWN"}, "data_format")],
)  # fmt: skip
def test_refuses_bad_arguments(arguments, what):
    with pytest.raises(ArgumentError, match=rf"layer 'pool', argument {what}: expected"):
        AvgPooling2D("pool", **arguments)


def test_refuses_windows_of_padding_alone():
    layer = AvgPooling2D("pool", kernel=2, pad=2)
    with pytest.raises(ShapeError, match="layer 'pool'.*padding smaller than the kernel"):
        layer.build((1, 8, 8))
