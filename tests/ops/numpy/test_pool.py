"""The pooling kernels: explicit windows, windows of padding alone, blocks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import pool
from singanet.ops.window import Window

WINDOWS = [
    Window((3, 3), (2, 2), ((1, 1), (1, 1))),
    Window((2, 2), (2, 2), ((0, 0), (0, 0))),
    Window((3, 2), (1, 1), ((0, 1), (1, 0))),
    Window((1, 1), (3, 2), ((0, 0), (0, 0))),
    Window((2, 3), (3, 4), ((1, 0), (2, 2))),
    # The corner windows of these meet nothing but padding.
    Window((2, 2), (2, 2), ((2, 2), (3, 2))),
    Window((1, 2), (1, 3), ((3, 1), (2, 4))),
]


def by_windows(x, dy, window):
    """Maximum and mean of each window cut to the image, and where their gradients go."""
    n, c, h, w = x.shape
    oh, ow = window._out_size(h, w)
    largest, mean = np.full((n, c, oh, ow), -np.inf), np.zeros((n, c, oh, ow))
    d_largest, d_mean = np.zeros_like(x), np.zeros_like(x)
    for i, j in np.ndindex(oh, ow):
        top, left = (
            k * s - p[0] for k, s, p in zip((i, j), window.stride, window.pads, strict=True)
        )
        rows = slice(max(top, 0), max(top + window.kernel[0], 0))
        cols = slice(max(left, 0), max(left + window.kernel[1], 0))
        part = x[:, :, rows, cols]
        if not part.size:
            continue
        largest[:, :, i, j] = part.max(axis=(2, 3))
        mean[:, :, i, j] = part.mean(axis=(2, 3))
        d_mean[:, :, rows, cols] += dy[:, :, i, j, None, None] / (part.shape[2] * part.shape[3])
        first = part.reshape(n, c, -1).argmax(axis=2)
        for a, b in np.ndindex(n, c):
            p, q = np.unravel_index(first[a, b], part.shape[2:])
            d_largest[a, b, rows.start + p, cols.start + q] += dy[a, b, i, j]
    return largest, mean, d_largest, d_mean


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("block", [1, 1 << 19])
def test_equals_the_windows_one_by_one(window, ties, block, monkeypatch, rng):
    monkeypatch.setattr(pool, "_BLOCK_BYTES", block)
    x = rng.standard_normal((3, 2, 6, 7))
    if ties:
        x = np.round(x)
    dy = rng.standard_normal((3, 2, *window._out_size(6, 7)))
    largest, mean, d_largest, d_mean = by_windows(x, dy, window)
    for laid_out in (x, x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        y, where = ops.max_pool(laid_out, window, True)
        np.testing.assert_array_equal(y, largest)
        np.testing.assert_array_equal(ops.max_pool(laid_out, window, False)[0], largest)
        np.testing.assert_allclose(ops.avg_pool(laid_out, window), mean, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        ops.max_pool_backward(dy, where, x.shape, window), d_largest, rtol=1e-12, atol=1e-15
    )
    np.testing.assert_allclose(
        ops.avg_pool_backward(dy, x.shape, window), d_mean, rtol=1e-12, atol=1e-15
    )


def test_the_position_takes_a_byte_while_it_fits():
    x = np.zeros((1, 1, 20, 20), np.float32)
    for kernel, dtype in [(3, np.uint8), (16, np.uint8), (17, np.uint16)]:
        window = Window((kernel, kernel), (1, 1), ((0, 0), (0, 0)))
        assert ops.max_pool(x, window, True)[1].dtype == dtype
        assert ops.max_pool(x, window, False)[1] is None


def test_nan_is_the_largest():
    x = np.array([[[[1.0, np.nan], [3.0, 2.0]]]])
    y, _ = ops.max_pool(x, Window((2, 2), (1, 1), ((0, 0), (0, 0))), True)
    assert np.isnan(y.item())


def test_scratch_does_not_grow_with_the_batch(rng):
    window = Window((3, 3), (2, 2), ((1, 1), (1, 1)))
    x = rng.standard_normal((64, 16, 24, 24)).astype(np.float32)
    y, where = ops.max_pool(x, window, True)
    calls = [
        (lambda: ops.max_pool(x, window, True), y.nbytes + where.nbytes),
        (lambda: ops.avg_pool(x, window), y.nbytes),
        (lambda: ops.max_pool_backward(y, where, x.shape, window), x.nbytes),
        (lambda: ops.avg_pool_backward(y, x.shape, window), x.nbytes),
    ]
    for call, result in calls:
        tracemalloc.start()
        try:
            call()
            beyond = tracemalloc.get_traced_memory()[1] - result
        finally:
            tracemalloc.stop()
        # The batch has 2.4 MB; a block of it half a MiB.
        assert beyond < 3 * pool._BLOCK_BYTES
