"""Matrices of fewer bits on a device: the numbers, rows and products of the CPU."""

from functools import partialmethod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import narrow as matrices
from singanet.ops.narrow import NarrowMatrix, WatchedMatrix
from singanet.ops.numpy import numpy_ops
from singanet.testing import strict_device
from tests.ops.test_held import KINDS, blocks, made

ALL = ["bfloat16", *KINDS]


def expect_alike(near, far, device, seed, rows=3):
    """That all that is read of ``far`` is what is read of ``near``, which lies on the CPU."""
    host, put, ops = device.ops.host, device.put, device.ops
    rng = np.random.default_rng(seed)
    np.testing.assert_array_equal(host(far.whole()), np.asarray(near))
    for one, other in ((near, far), (near.T, far.T)):
        ids = rng.integers(0, one.shape[0], (2, 3))
        got = host(ops.gather_rows(other, put(ids)))
        np.testing.assert_array_equal(got, numpy_ops.gather_rows(one, ids))
        x = rng.standard_normal((rows, one.shape[0]), np.float32)
        y = ops.matmul(put(x), other)
        assert y.flags.c_contiguous
        exact = x.astype(np.float64) @ np.asarray(one)
        bound = 1e-5 * (1e-3 + np.abs(exact).max())
        np.testing.assert_allclose(host(y), exact, rtol=0, atol=bound)
        out = ops.xp.empty(y.shape, np.float32)
        assert ops.matmul(put(x), other, out=out) is out
        np.testing.assert_array_equal(host(out), host(y))
        bias = rng.standard_normal(one.shape[1], np.float32)
        np.testing.assert_array_equal(host(ops.affine(put(x), other, put(bias))), host(y) + bias)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [(32, 64), (96, 50), (64, 4200)])
def test_it_is_there_what_it_is_on_the_cpu(kind, size, gpu):
    near, _ = made(kind, *size)
    far = near.moved(gpu.put)
    assert far.xp is gpu.ops.xp
    assert far.nbytes == near.nbytes
    expect_alike(near, far, gpu, 0)
    back = far.moved(gpu.ops.host)
    assert all(type(array) is np.ndarray for array in back.arrays)
    for one, other in zip(back.arrays, near.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


@given(
    st.sampled_from(ALL), st.integers(1, 4), st.integers(1, 300), st.integers(1, 9), st.integers()
)
def test_matrices_of_any_size_are(kind, inputs, outputs, rows, seed):
    device = strict_device()
    # Blocks are of 32 inputs; words are of any number.
    inputs = 32 * inputs - (seed % 32 if kind == "bfloat16" else 0)
    near, _ = made(kind, inputs, outputs)
    expect_alike(near, near.moved(device.put), device, abs(seed), rows)


@pytest.mark.parametrize("kind", ALL)
def test_parts_are_summed_to_the_whole(kind, gpu, monkeypatch):
    # The last panel and the last part end before others do.
    near, _ = made(kind, 64, 4130 if kind in KINDS else 300)
    far = near.moved(gpu.put)
    assert [*far.parts()] == [slice(0, near.outputs)]
    assert far.widened_bytes == 4 * near.size
    monkeypatch.setattr(matrices, "_ON_DEVICE", 2 * 64 * 64)
    monkeypatch.setattr(NarrowMatrix, "parts", partialmethod(NarrowMatrix.parts, 64 * 64))
    assert len([*far.parts()]) > 2
    assert far.widened_bytes == 4 * 64 * 128
    assert near.widened_bytes == 0
    expect_alike(near, far, gpu, 1)


@pytest.mark.parametrize("kind", ALL)
def test_what_is_no_number_shows_there(kind, gpu):
    near, _ = made(kind, 64, 128)
    far, x = near.moved(gpu.put), np.ones((3, 64), np.float32)
    x[0, 3], x[1, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        y = gpu.ops.host(gpu.ops.matmul(gpu.put(x), far))
    assert np.isnan(y[0]).all()
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[2]).all()


def test_scales_that_are_no_numbers_stay_with_their_blocks(gpu):
    near, _ = blocks("Q4_1", 64, 70)
    near.scales[0, 1, 3], near.minima[0, 0, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want, far = near.whole(), near.moved(gpu.put)
        np.testing.assert_array_equal(gpu.ops.host(far.whole()), want)
        ids = np.array([3, 5, 6])
        rows = gpu.ops.host(gpu.ops.gather_rows(far.T, gpu.put(ids)))
    np.testing.assert_array_equal(rows, want.T[ids])


def test_rows_that_are_multiplied_are_seen_there(gpu):
    seen = []
    values = np.random.default_rng(0).standard_normal((8, 5), np.float32)
    watched = WatchedMatrix(gpu.put(values), seen.append)
    x = np.random.default_rng(1).standard_normal((2, 8), np.float32)
    y = gpu.ops.host(gpu.ops.matmul(gpu.put(x), watched))
    np.testing.assert_allclose(y, x @ values, rtol=1e-5, atol=1e-6)
    assert [gpu.ops.host(each).tolist() for each in seen] == [x.tolist()]
