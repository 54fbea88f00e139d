"""The activation kernels: whatever the blocks, in bounded scratch."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.numpy import pointwise
from singanet.ops.numpy.pointwise import normal_tail


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("block", [1, 100])
def test_blocks_change_nothing(mode, block, monkeypatch, rng):
    x, dy = rng.standard_normal((2, 7, 3, 5))
    whole = ops.activation(mode, x, 0.3)
    kept = x if ACTIVATIONS[mode] == "x" else whole
    slopes = ops.activation_backward(mode, dy, kept, 0.3)
    monkeypatch.setattr(pointwise, "_BLOCK_BYTES", block)
    np.testing.assert_array_equal(ops.activation(mode, x, 0.3), whole)
    np.testing.assert_array_equal(ops.activation_backward(mode, dy, kept, 0.3), slopes)


@pytest.mark.parametrize("mode", ACTIVATIONS)
def test_scratch_does_not_grow_with_the_batch(mode, rng):
    x = rng.standard_normal((64, 64, 256)).astype(np.float32)
    y = ops.activation(mode, x)
    kept = x if ACTIVATIONS[mode] == "x" else y
    for call in (lambda: ops.activation(mode, x), lambda: ops.activation_backward(mode, x, kept)):
        tracemalloc.start()
        try:
            call()
            beyond = tracemalloc.get_traced_memory()[1] - x.nbytes
        finally:
            tracemalloc.stop()
        # Eight blocks at most where a whole array of 4 MiB would show.
        assert beyond < 8 * pointwise._BLOCK_BYTES


def test_channels_last_memory_stays_so(rng):
    x = rng.standard_normal((40, 30, 30, 16)).astype(np.float32).transpose(0, 3, 1, 2)
    for mode in ACTIVATIONS:
        y = ops.activation(mode, x)
        dx = ops.activation_backward(mode, x, x if ACTIVATIONS[mode] == "x" else y)
        assert y.strides == dx.strides == x.strides


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-11), (np.float32, 3e-6)])
def test_the_normal_tail_keeps_its_relative_accuracy(dtype, tolerance):
    x = np.linspace(-5.0, 5.0, 2001, dtype=dtype)
    want = [0.5 * math.erfc(abs(float(value)) / math.sqrt(2.0)) for value in x]
    got = normal_tail(np, x)
    assert got.dtype == dtype
    # The square of x/√2 reaches 12.5, which multiplies the error of float32 as much.
    np.testing.assert_allclose(got, want, rtol=tolerance)


def test_sigmoid(rng):
    x = 3.0 * rng.standard_normal((5, 6))
    np.testing.assert_allclose(ops.sigmoid(x), 0.5 + 0.5 * np.tanh(0.5 * x), rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 9000), (3, 5000), (1, 16, 30, 30), (40, 16, 9, 9)])
def test_relu_of_many_elements(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    x.flat[:3] = np.nan, np.inf, -np.inf
    want = np.where(x < 0, np.float32(0), x)
    y = ops.activation("relu", x)
    np.testing.assert_array_equal(y, want)
    dy = rng.standard_normal(shape).astype(np.float32)
    few = x[:1, :7] if len(shape) == 2 else x[:2, :1]
    dx = ops.activation_backward("relu", dy, y)
    np.testing.assert_array_equal(dx, np.where(want > 0, dy, 0))
    part = ops.activation_backward("relu", dy[: len(few), : few.shape[1]], few)
    np.testing.assert_array_equal(part, dx[: len(few), : few.shape[1]])
