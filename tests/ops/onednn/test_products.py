"""Matrix products: which are oneDNN's, and that they are right in every memory order."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import threads
from singanet.ops.onednn import products, set_threads


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    monkeypatch.setattr(products, "_LEAST", 1)
    monkeypatch.setattr(products, "_LEAST_OUTER", 1)
    monkeypatch.setattr(products, "_FEW", 1)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(5, 7, 3), (1, 64, 33), (40, 1, 17), (32, 48, 1), (1, 1, 1)]
)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_every_order(ops, only_onednn, m, k, n, transposed):
    only_onednn("matmul", "affine")
    a = draw(k, m).T if transposed[0] else draw(m, k)
    b = draw(n, k, seed=1).T if transposed[1] else draw(k, n, seed=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(ops.matmul(a, b), exact, rtol=0, atol=1e-5 * abs(exact).max())
    out = np.full((m, n), np.nan, np.float32)
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * abs(exact).max())
    bias = draw(n, seed=2)
    np.testing.assert_allclose(
        ops.affine(a, b, bias), exact + bias, rtol=0, atol=2e-5 * (1 + abs(exact).max())
    )


@pytest.mark.parametrize(("m", "k", "n"), [(5, 7, 3), (1, 64, 33), (32, 48, 1)])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_a_product_is_added(ops, only_onednn, m, k, n, transposed):
    only_onednn("add_matmul")
    a = draw(k, m).T if transposed[0] else draw(m, k)
    b = draw(n, k, seed=1).T if transposed[1] else draw(k, n, seed=1)
    y = draw(m, n, seed=2)
    exact = y + a.astype(np.float64) @ b.astype(np.float64)
    assert ops.add_matmul(y, a, b) is y
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * abs(exact).max())


def test_a_product_that_is_added_elsewhere_stays_with_numpy(ops):
    a, b, y = draw(6, 8), draw(8, 10, seed=1), draw(10, 6, seed=2).T
    exact = y + a.astype(np.float64) @ b.astype(np.float64)
    assert ops.add_matmul(y, a, b) is y
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * abs(exact).max())


def test_what_stays_with_numpy(ops):
    a, b = draw(6, 8), draw(8, 10, seed=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    gaps = np.repeat(a, 2, axis=1)[:, ::2]
    transposed = np.empty((10, 6), np.float32).T
    for got in (ops.matmul(gaps, b), ops.matmul(a, b, out=transposed)):
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 * abs(exact).max())
    np.testing.assert_array_equal(ops.matmul(a.astype(np.float64), b.astype(np.float64)), exact)
    assert ops.matmul(a[:0], b).shape == (0, 10)
    assert not ops.matmul(a[:, :0], b[:0]).any()
    stack = draw(2, 6, 8)
    np.testing.assert_allclose(ops.matmul(stack, b), stack @ b)
    with pytest.raises(ValueError, match="mismatch"):
        ops.matmul(a, a)


def test_small_kernels_are_one_threads(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(threads.cores())
    ops.softmax(draw(1024, 100))
    assert ops.runtime().team.size == 1
    ops.softmax(draw(8192, 100))
    assert ops.runtime().team.size == threads.cores()
