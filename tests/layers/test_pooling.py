"""Max and average pooling of images and of sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import AvgPooling1D, AvgPooling2D, Context, MaxPooling1D, MaxPooling2D
from singanet.ops import numpy_ops, ops_for
from singanet.testing import LayerCase


def windows(x, kernel, stride, pads):
    """For each output position the part of its window that lies on the image, (N, C, a, b)."""
    (h, w), ((top, bottom), (left, right)) = x.shape[2:], pads
    rows = (h + top + bottom - kernel[0]) // stride[0] + 1
    columns = (w + left + right - kernel[1]) // stride[1] + 1
    for i in range(rows):
        for j in range(columns):
            first, start = i * stride[0] - top, j * stride[1] - left
            yield (
                i,
                j,
                x[:, :, max(first, 0) : first + kernel[0], max(start, 0) : start + kernel[1]],
            )


def pooled(x, function, kernel=(3, 3), stride=(2, 2), pads=((1, 1), (1, 1))):
    found = list(windows(x, kernel, stride, pads))
    y = np.empty((*x.shape[:2], found[-1][0] + 1, found[-1][1] + 1))
    for i, j, part in found:
        y[:, :, i, j] = function(part)
    return y


class MaxCase(LayerCase):
    in_shapes = (2, 7, 6)
    arguments: dict = {"stride": 2}
    geometry: dict = {}

    def make(self):
        return MaxPooling2D("pool", **self.arguments)

    def draw(self, rng, batch):
        # All values apart, so that no window has a tie within reach of the differences.
        shape = (batch, *self.in_shapes)
        return rng.permutation(int(np.prod(shape))).reshape(shape) / 10.0

    def expected(self, params, x):
        return pooled(x, lambda part: part.max(axis=(2, 3)), **self.geometry)


class TestMaxDefaultsOfSinga(MaxCase):
    pass


class TestMaxStrideIsTheKernel(MaxCase):
    arguments = {"kernel": (3, 2)}
    geometry = {"kernel": (3, 2), "stride": (3, 2), "pads": ((1, 1), (0, 1))}


class TestMaxUnevenPad(MaxCase):
    arguments = {"pad": ((2, 0), 1), "stride": 2}
    geometry = {"pads": ((2, 0), (1, 1))}


class TestMaxOverlappingStrideOne(MaxCase):
    arguments = {"stride": 1}
    geometry = {"stride": (1, 1)}


class TestMaxDisjoint(MaxCase):
    arguments = {"kernel": 2, "border_mode": "valid"}
    geometry = {"kernel": (2, 2), "pads": ((0, 0), (0, 0))}


class TestMaxGapsBetweenWindows(MaxCase):
    in_shapes = (2, 9, 8)
    arguments = {"kernel": 2, "stride": 3, "border_mode": "valid"}
    geometry = {"kernel": (2, 2), "stride": (3, 3), "pads": ((0, 0), (0, 0))}


class TestMaxEvenKernelSame(MaxCase):
    arguments = {"kernel": (2, 4), "stride": (1, 3)}
    geometry = {"kernel": (2, 4), "stride": (1, 3), "pads": ((0, 1), (1, 2))}


class TestMaxPadOverridesBorderMode(MaxCase):
    arguments = {"kernel": (3, 2), "pad": (2, 0), "stride": (2, 1)}
    geometry = {"kernel": (3, 2), "pads": ((2, 2), (0, 0)), "stride": (2, 1)}


class TestMaxWholeImage(MaxCase):
    arguments = {"kernel": (7, 6), "stride": 1, "border_mode": "valid"}
    geometry = {"kernel": (7, 6), "stride": (1, 1), "pads": ((0, 0), (0, 0))}


class TestMaxNegativeInputs(MaxCase):
    """Padding never wins, not even over negative values."""

    def draw(self, rng, batch):
        return super().draw(rng, batch) - 1000.0


class AvgCase(LayerCase):
    in_shapes = (2, 7, 6)
    arguments: dict = {"stride": 2}
    geometry: dict = {}

    def make(self):
        return AvgPooling2D("pool", **self.arguments)

    def expected(self, params, x):
        return pooled(x, lambda part: part.mean(axis=(2, 3)), **self.geometry)


class TestAvgDefaultsOfSinga(AvgCase):
    pass


class TestAvgPadCounted(LayerCase):
    in_shapes = (2, 7, 6)

    def make(self):
        return AvgPooling2D("pool", 3, 2, pad=((1, 0), (2, 1)), count_include_pad=True)

    def expected(self, params, x):
        full = np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 1)))
        return pooled(full, lambda part: part.mean(axis=(2, 3)), pads=((0, 0), (0, 0)))


class TestAvgStrideOne(AvgCase):
    arguments = {"stride": 1}
    geometry = {"stride": (1, 1)}


class TestAvgDisjoint(AvgCase):
    arguments = {"kernel": 2, "border_mode": "valid"}
    geometry = {"kernel": (2, 2), "pads": ((0, 0), (0, 0))}


class TestAvgGapsBetweenWindows(AvgCase):
    in_shapes = (2, 9, 8)
    arguments = {"kernel": (2, 1), "stride": 3, "border_mode": "valid"}
    geometry = {"kernel": (2, 1), "stride": (3, 3), "pads": ((0, 0), (0, 0))}


class TestAvgEvenKernelSame(AvgCase):
    arguments = {"kernel": (4, 2), "stride": (3, 1)}
    geometry = {"kernel": (4, 2), "stride": (3, 1), "pads": ((1, 2), (0, 1))}


class TestAvgPadOverridesBorderMode(AvgCase):
    arguments = {"kernel": (2, 3), "pad": (0, 2), "stride": (1, 2)}
    geometry = {"kernel": (2, 3), "pads": ((0, 0), (2, 2)), "stride": (1, 2)}


class TestAvgWholeImage(AvgCase):
    arguments = {"kernel": (7, 6), "stride": 1, "border_mode": "valid"}
    geometry = {"kernel": (7, 6), "stride": (1, 1), "pads": ((0, 0), (0, 0))}


def run(layer, x, dy, ops=numpy_ops):
    layer.build(x.shape[1:])
    ctx = Context(ops, np.random.default_rng(0), {}, True)
    y = layer.forward(ctx, x)
    return y, layer.backward(ctx, dy)[0]


def test_max_has_the_reference_values_of_singa():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    layer = MaxPooling2D("pool", 2, 1, "valid")
    y, dx = run(layer, x, np.array([[[[0.1, 0.2], [0.3, 0.4]]]], np.float32))
    np.testing.assert_array_equal(y[0, 0], [[5, 6], [8, 9]])
    want = np.array([[0, 0, 0], [0, 0.1, 0.2], [0, 0.3, 0.4]], np.float32)
    np.testing.assert_array_equal(dx[0, 0], want)


def test_of_equal_values_the_first_in_row_major_order_gets_the_whole_gradient():
    x = np.array([[[[1, 7, 7], [7, 7, 0], [2, 7, 7]]]], np.float32)
    layer = MaxPooling2D("pool", 2, 1, "valid")
    y, dx = run(layer, x, np.array([[[[1, 10], [100, 1000]]]], np.float32))
    assert (y == 7).all()
    np.testing.assert_array_equal(dx[0, 0], [[0, 11, 0], [100, 1000, 0], [0, 0, 0]])


def test_a_constant_image_passes_on_every_gradient_once():
    x = np.full((2, 3, 5, 5), -2.0)
    dy = np.random.default_rng(0).standard_normal((2, 3, 3, 3))
    y, dx = run(MaxPooling2D("pool", 3, 2), x, dy)
    assert (y == -2.0).all()
    np.testing.assert_allclose(dx.sum(axis=(2, 3)), dy.sum(axis=(2, 3)), rtol=1e-12)


def test_a_window_larger_than_a_byte_counts():
    """More kernel positions than an 8-bit index can name."""
    x = np.zeros((1, 1, 20, 20))
    x[0, 0, 19, 18] = 1.0
    _, dx = run(MaxPooling2D("pool", 20, 1, "valid"), x, np.full((1, 1, 1, 1), 3.0))
    assert dx[0, 0, 19, 18] == 3.0
    assert np.count_nonzero(dx) == 1


def test_means_by_hand():
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


@pytest.mark.parametrize("kind", [MaxPooling2D, AvgPooling2D])
def test_output_shape_of_singa(kind):
    layer = kind("pool", 3, 2, input_sample_shape=(64, 224, 224))
    assert layer.get_output_sample_shape() == (64, 112, 112)


@pytest.mark.parametrize("kind", [MaxPooling1D, AvgPooling1D])
def test_output_shape_of_singas_sequences(kind):
    layer = kind("pool", 3, 2, input_sample_shape=(224,))
    assert layer.get_output_sample_shape() == (112,)


@pytest.mark.parametrize("kind", [MaxPooling2D, AvgPooling2D])
def test_agrees_with_pytorch(kind, rng):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    for kernel, stride, pad in [(3, 2, 1), (2, 2, 0), ((3, 2), (1, 2), (1, 0)), (5, 3, 2)]:
        x = rng.standard_normal((3, 4, 13, 11)).astype(np.float32)
        leaf = torch.tensor(x, requires_grad=True)
        if kind is MaxPooling2D:
            theirs = functional.max_pool2d(leaf, kernel, stride, pad)
        else:
            theirs = functional.avg_pool2d(leaf, kernel, stride, pad, count_include_pad=False)
        dy = rng.standard_normal(theirs.shape).astype(np.float32)
        theirs.backward(torch.tensor(dy))
        y, dx = run(kind("pool", kernel, stride, pad=pad), x, dy)
        assert y.dtype == dx.dtype == np.float32
        close = {"rtol": 0, "atol": 0} if kind is MaxPooling2D else {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(y, theirs.detach().numpy(), **close)
        np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)


@given(
    st.tuples(*[st.integers(1, 4)] * 2),
    st.one_of(st.none(), st.tuples(*[st.integers(1, 4)] * 2)),
    st.tuples(*[st.integers(0, 2)] * 2),
    st.integers(1, 2),
    *[st.booleans()] * 2,
)
@settings(max_examples=20, deadline=None)
def test_agrees_with_pytorch_whatever_the_window(kernel, stride, pad, dilation, ceil, count):
    torch = pytest.importorskip("torch")
    pad = tuple(min(p, k // 2) for p, k in zip(pad, kernel, strict=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 9, 8))
    more = {"dilation": dilation, "ceil_mode": ceil}
    pairs = [
        (MaxPooling2D("pool", kernel, stride, pad=pad, **more),
         torch.nn.MaxPool2d(kernel, stride, pad, **more)),
        (AvgPooling2D("pool", kernel, stride, pad=pad, ceil_mode=ceil, count_include_pad=count),
         torch.nn.AvgPool2d(kernel, stride, pad, ceil, count)),
    ]  # fmt: skip
    for ours, theirs in pairs:
        for dtype, ops in ((np.float64, numpy_ops), (np.float32, ops_for(x))):
            leaf = torch.tensor(x.astype(dtype), requires_grad=True)
            wanted = theirs(leaf)
            dy = rng.standard_normal(wanted.shape).astype(dtype)
            wanted.backward(torch.tensor(dy))
            y, dx = run(ours, x.astype(dtype), dy, ops)
            assert y.dtype == dx.dtype == dtype
            np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [MaxPooling2D, AvgPooling2D])
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"pool_size": 0}, "pool_size"),
        ({"pool_size": -2}, "pool_size"),
        ({"pool_size": "3"}, "pool_size"),
        ({"strides": 0}, "strides"),
        ({"padding": ((1, 2, 3), 1)}, "padding"),
        ({"strides": (1, 2, 3)}, "strides"),
        ({"padding": (0, -1)}, "padding"),
        ({"padding": 0.5}, "padding"),
        ({"padding": "SAME"}, "padding"),
        ({"padding": None}, "padding"),
        ({"data_format": "NHWC"}, "data_format"),
    ],
)
def test_refuses_bad_arguments(kind, arguments, what):
    with pytest.raises(ArgumentError, match=rf"layer 'pool', argument {what}: expected"):
        kind("pool", **arguments)


@pytest.mark.parametrize("kind", [MaxPooling2D, AvgPooling2D])
@pytest.mark.parametrize(
    ("arguments", "shape", "message"),
    [
        ({}, (8,), r"\(channels, height, width\)"),
        ({}, [(1, 8, 8)], "one input"),
        ({"border_mode": "valid"}, (1, 2, 8), "images at least as large"),
        # Windows that would see nothing but padding have no maximum and no mean.
        ({"kernel": 2, "pad": 2}, (1, 8, 8), "padding smaller than the kernel"),
        ({"pad": 3}, (1, 8, 8), "padding smaller than the kernel"),
        ({"kernel": (3, 1), "pad": (0, 1)}, (1, 8, 8), "padding smaller than the kernel"),
    ],
)
def test_refuses_samples_that_do_not_fit(kind, arguments, shape, message):
    layer = kind("pool", **arguments)
    with pytest.raises(ShapeError, match=f"layer 'pool'.*{message}"):
        layer.build(shape)
    assert layer.out_shapes is None


def by_loops(x, function, kernel, stride, pad):
    """Over the last axis, only positions on the sequence counting."""
    length = x.shape[-1]
    starts = range(-pad, length + pad - kernel + 1, stride)
    windows = [x[..., max(s, 0) : min(s + kernel, length)] for s in starts]
    return np.stack([function(window, axis=-1) for window in windows], axis=-1)


class TestMaxPooling1D(LayerCase):
    in_shapes = (3, 8)

    def make(self):
        return MaxPooling1D("pool", stride=2)

    def expected(self, params, x):
        return by_loops(x, np.max, 3, 2, 1)

    def draw(self, rng, batch):
        # All below zero, so that a padding of zeros would win.
        return super().draw(rng, batch) - 10


class TestMaxPooling1DOfSingasShape(LayerCase):
    in_shapes = (9,)

    def make(self):
        return MaxPooling1D("pool", kernel=4, stride=3, pad=2)

    def expected(self, params, x):
        return by_loops(x, np.max, 4, 3, 2)


class TestAvgPooling1D(LayerCase):
    in_shapes = (3, 8)

    def make(self):
        return AvgPooling1D("pool", stride=2)

    def expected(self, params, x):
        return by_loops(x, np.mean, 3, 2, 1)


class TestAvgPooling1DOfSingasShape(LayerCase):
    in_shapes = (9,)

    def make(self):
        return AvgPooling1D("pool", kernel=4, stride=3, pad=2)

    def expected(self, params, x):
        return by_loops(x, np.mean, 4, 3, 2)


def test_the_mean_is_that_of_whole_windows():
    # SINGA took a third of every second element.
    layer = AvgPooling1D("pool", 3, 2, border_mode="valid", input_sample_shape=(5,))
    layer.get_output_sample_shape()
    _, y = LayerCase().run(layer, np.array([[1.0, 2, 6, 4, 2]]), train=False)
    assert y.tolist() == [[3, 4]]


def test_refuses_bad_arguments_and_shapes_of_sequences():
    with pytest.raises(ArgumentError, match=r"'pool', argument pool_size: expected an int"):
        MaxPooling1D("pool", (2, 2))
    with pytest.raises(ShapeError, match=r"'pool': expected .*\(channels, length\)"):
        MaxPooling1D("pool").build((2, 3, 4))
    with pytest.raises(ShapeError, match=r"'pool': expected sequences at least as long"):
        MaxPooling1D("pool", 5, border_mode="valid").build((4,))
    with pytest.raises(ShapeError, match=r"'pool': expected padding smaller than the kernel"):
        MaxPooling1D("pool", 2, pad=2).build((4,))
