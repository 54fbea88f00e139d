"""Convolutions as products with the weight: right, and only where they are faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.window import Window

NONE = ((0, 0), (0, 0))
GEOMETRIES = [
    Window((1, 1), (1, 1), NONE),
    Window((1, 1), (2, 2), NONE),
    Window((1, 1), (1, 1), ((1, 0), (0, 2))),
    Window((3, 3), (1, 1), ((1, 1), (1, 1))),
    Window((3, 2), (2, 1), ((0, 1), (2, 0)), (1, 2)),
]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, wanted):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("window", GEOMETRIES)
@pytest.mark.parametrize("last", [False, True])
def test_equals_numpy(ops, chosen, window, last):
    x, w, b = draw(2, 256, 4, 5), draw(512, 256, *window.kernel, seed=1), draw(512, seed=2)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    dy = draw(2, 512, *window._out_size(4, 5), seed=3)
    x64, w64, b64, dy64 = (a.astype(np.float64) for a in (x, w, b, dy))
    close(ops.conv2d(x, w, b, window), numpy_ops.conv2d(x64, w64, b64, window))
    close(ops.conv2d(x, w, None, window), numpy_ops.conv2d(x64, w64, None, window))
    close(
        ops.conv2d_backward_weights(x, dy, w.shape, window),
        numpy_ops.conv2d_backward_weights(x64, dy64, w.shape, window),
    )
    close(
        ops.conv2d_backward_data(dy, w, x.shape, window),
        numpy_ops.conv2d_backward_data(dy64, w64, x.shape, window),
    )
    # The gradient of the images is one only where windows are single pixels.
    plain = window == GEOMETRIES[0]
    assert chosen.found[:4] == ["product"] * 3 + ["product" if plain else "direct"]


@pytest.mark.parametrize(
    ("x", "weight", "window"),
    [
        ((2, 64, 20, 20), (512, 64, 3, 3), GEOMETRIES[3]),  # many pixels
        ((2, 16, 4, 4), (16, 16, 3, 3), GEOMETRIES[3]),  # a small weight
        ((2, 512, 4, 4), (512, 256, 3, 3), replace(GEOMETRIES[3], groups=2)),
    ],
)
def test_others_are_convolutions(ops, chosen, x, weight, window):
    y = ops.conv2d(draw(*x), draw(*weight, seed=1), None, window)
    ops.conv2d_backward_weights(draw(*x), y, weight, window)
    ops.conv2d_backward_data(y, draw(*weight, seed=1), x, window)
    assert len(chosen.found) == 3
    assert "product" not in chosen.found


def test_gradients_of_large_weights_are_products_up_to_more_pixels(ops, chosen):
    x, dy, window = draw(8, 512, 4, 4), draw(8, 512, 4, 4, seed=1), GEOMETRIES[3]
    exact = numpy_ops.conv2d_backward_weights(x, dy, (512, 512, 3, 3), window)
    close(ops.conv2d_backward_weights(x, dy, (512, 512, 3, 3), window), exact)
    assert chosen.found == ["product"]
    ops.conv2d(x, draw(512, 512, 3, 3), None, window)
    ops.conv2d_backward_weights(x, dy[:, :64], (64, 512, 3, 3), window)
    assert "product" not in chosen.found[1:]


def test_small_weights_of_single_pixels_are_products(ops, chosen):
    x, weight = draw(8, 832, 7, 7), draw(32, 832, 1, 1, seed=1)
    exact = numpy_ops.conv2d(x, weight, None, GEOMETRIES[0])
    close(ops.conv2d(x, weight, None, GEOMETRIES[0]), exact)
    assert chosen.found == ["product"]
    ops.conv2d(x[:, :500], weight[:, :500], None, GEOMETRIES[0])
    assert chosen.found[1:] == ["direct"]


def test_doubles_and_empty_batches_are_numpys(ops, plans):
    w = draw(512, 256, 1, 1)
    assert ops.conv2d(draw(0, 256, 2, 2), w, None, GEOMETRIES[0]).shape == (0, 512, 2, 2)
    x = draw(1, 256, 2, 2).astype(np.float64)
    assert ops.conv2d(x, w.astype(np.float64), None, GEOMETRIES[0]).dtype == np.float64
    assert plans() == (0, 0)
