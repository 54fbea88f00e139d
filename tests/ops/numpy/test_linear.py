"""Matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import linear


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(dtype, transposed, rng):
    a = rng.standard_normal((4, 5)).astype(dtype)
    b = rng.standard_normal((3, 5) if transposed else (5, 3)).astype(dtype)
    b = b.T if transposed else b
    got = ops.matmul(a, b)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.einsum("ij,jk->ik", a, b), rtol=1e-5)
    out = np.empty((4, 3), dtype)
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, got)


@pytest.mark.parametrize("beside", [1, 40, 1 << 22])
@pytest.mark.parametrize(("m", "n"), [(4, 9), (9, 4), (0, 3), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_product_is_added(dtype, m, n, beside, rng, monkeypatch):
    monkeypatch.setattr(linear, "_PRODUCT_BYTES", beside)
    y, a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, n), (m, 5), (n, 5)))
    wanted = y.astype(np.float64) + np.einsum("ik,jk->ij", a.astype(float), b.astype(float))
    assert ops.add_matmul(y, a, b.T) is y
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=8 * tolerance)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_column_and_a_row(n, rng):
    a, b = rng.standard_normal((1, 5)).T, rng.standard_normal((1, n))
    np.testing.assert_array_equal(ops.matmul(a, b), np.outer(a, b))
    out = np.empty((5, n))
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, np.outer(a, b))
    with pytest.raises(ValueError, match="mismatch"):
        ops.matmul(a, rng.standard_normal((2, n)))


@pytest.mark.parametrize("n", [0, 1, 4])
def test_affine(n, rng):
    x, w, b = rng.standard_normal((n, 5)), rng.standard_normal((5, 3)), rng.standard_normal(3)
    want = np.einsum("ni,io->no", x, w)
    np.testing.assert_allclose(ops.affine(x, w, None), want, rtol=1e-12)
    np.testing.assert_allclose(ops.affine(x, w, b), want + b, rtol=1e-12)
    single = ops.affine(x.astype(np.float32), w.astype(np.float32), b.astype(np.float32))
    assert single.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 33])
def test_column_sums(dtype, n, rng):
    x = rng.standard_normal((n, 7)).astype(dtype)
    got = ops.column_sums(x)
    assert got.shape == (7,)
    assert got.dtype == dtype
    wanted = [sum(float(row[k]) for row in x) for k in range(7)]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=40 * np.finfo(dtype).eps)


def test_column_sums_are_the_same_bits_however_the_rows_lie(rng):
    x = rng.standard_normal((33, 20)).astype(np.float32)
    padded = np.zeros((33, 25), np.float32)
    padded[:, :20] = x
    wanted = ops.column_sums(x)
    for other in (np.asfortranarray(x), padded[:, :20], x[::-1].copy()[::-1]):
        np.testing.assert_array_equal(ops.column_sums(other), wanted)
