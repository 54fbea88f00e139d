"""Convolution with few kernels, on views of the padded image."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import windows
from singanet.ops.numpy.conv import depthwise
from singanet.ops.window import Window

# kernel, pads, size of the image
GEOMETRIES = [
    ((3, 3), ((1, 1), (1, 1)), (8, 8)),
    ((5, 5), ((2, 2), (2, 2)), (5, 9)),
    ((1, 3), ((0, 0), (1, 1)), (4, 7)),
    ((3, 2), ((0, 0), (0, 0)), (3, 2)),
    ((2, 4), ((0, 1), (1, 2)), (6, 5)),
    ((3, 3), ((2, 2), (3, 0)), (4, 3)),
]


def case(kernel, pads, size, n=3, channels=8, kernels=5, groups=1):
    """Random operands, and y and dw by sums over windows of the padded image."""
    rng = np.random.default_rng(0)
    window = Window(kernel, (1, 1), pads, groups=groups)
    x = rng.standard_normal((n, channels, *size))
    weight = rng.standard_normal((kernels, channels // groups, *kernel))
    seen = sliding_window_view(np.pad(x, ((0, 0), (0, 0), *pads)), kernel, axis=(2, 3))
    dy = rng.standard_normal((n, kernels, *seen.shape[2:4]))
    parts = [np.split(array, groups, axis) for array, axis in ((seen, 1), (weight, 0), (dy, 1))]
    y = [np.einsum("ncijab,fcab->nfij", s, w) for s, w, _ in zip(*parts, strict=True)]
    dw = [np.einsum("ncijab,nfij->fcab", s, d) for s, _, d in zip(*parts, strict=True)]
    return window, x, weight, dy, np.concatenate(y, 1), np.concatenate(dw)


@pytest.mark.parametrize(("kernel", "pads", "size"), GEOMETRIES)
@pytest.mark.parametrize("scratch", [1, 20_000, 1 << 20])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_equals_the_definition(kernel, pads, size, scratch, groups, monkeypatch):
    """Sample by sample, two at a time, and all at once."""
    monkeypatch.setattr(windows, "SCRATCH_BYTES", scratch)
    window, x, weight, dy, y, dw = case(kernel, pads, size, kernels=4 * groups, groups=groups)
    bias = np.arange(len(weight), dtype=float)
    close = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(depthwise.conv2d(ops, x, weight, None, window), y, **close)
    np.testing.assert_allclose(
        depthwise.conv2d(ops, x, weight, bias, window), y + bias[:, None, None], **close
    )
    found = depthwise.conv2d_backward_weights(ops, x, dy, weight.shape, window)
    np.testing.assert_allclose(found, dw, **close)


def test_no_samples():
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    x, weight = np.zeros((0, 8, 6, 6), np.float32), np.ones((4, 8, 3, 3), np.float32)
    y = depthwise.conv2d(ops, x, weight, None, window)
    assert y.shape == (0, 4, 6, 6)
    assert y.dtype == np.float32
    assert not depthwise.conv2d_backward_weights(ops, x, y, weight.shape, window).any()


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (2, 1), ((1, 1), (1, 1))),
        Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)),
        Window((3, 3), (1, 1), ((1, 1), (1, 1)), groups=8),
        Window((1, 1), (1, 1), ((0, 0), (0, 0))),
    ],
)
def test_what_it_leaves_to_others(window):
    """Strides and dilations, which its views cannot give; groups of two channels; single pixels."""
    assert not depthwise.is_narrow(
        ops, (2, 16, 32, 32), (16, 16 // window.groups, *window.kernel), window
    )


def test_it_serves_the_layers_of_resnet20(monkeypatch):
    """`conv2d` and both of its gradients come here, and agree with the columns."""
    kernel, pads, size = (3, 3), ((1, 1), (1, 1)), (12, 12)
    window, x, weight, dy, y, dw = case(kernel, pads, size, channels=16, kernels=16)
    assert depthwise.is_narrow(ops, x.shape, weight.shape, window)
    np.testing.assert_allclose(ops.conv2d(x, weight, None, window), y, rtol=1e-10, atol=1e-10)
    found = ops.conv2d_backward_weights(x, dy, weight.shape, window)
    np.testing.assert_allclose(found, dw, rtol=1e-10, atol=1e-10)
    dx = ops.conv2d_backward_data(dy, weight, x.shape, window)
    monkeypatch.setattr(depthwise, "_MOST_KERNELS", 0)
    columns = ops.conv2d_backward_data(dy, weight, x.shape, window)
    np.testing.assert_allclose(dx, columns, rtol=1e-10, atol=1e-10)
