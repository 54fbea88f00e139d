"""Products with constant matrices, with their bias, against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import kernels
from singanet.ops.onednn import OneDnnOps, set_threads

SIZES = [(1, 784, 512), (3, 5, 7), (300, 70, 1), (330, 1, 100), (9, 100, 37), (32, 784, 512)]


@pytest.fixture(autouse=True, params=["compiled", "not compiled"])
def compiler(request, monkeypatch):
    """Small ones are what LLVM makes of them, or oneDNN's and NumPy's."""
    if request.param == "compiled" and not has_compiler():
        pytest.skip("llvmlite is not installed")
    monkeypatch.setattr(kernels, "has_compiler", lambda: request.param == "compiled")
    return request.param == "compiled"


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(ops, m, k, n, bias=True, transposed=False, relu=False):
    x, b = draw(m, k), draw(n, seed=2) if bias else None
    weight = draw(n, k, seed=1).T if transposed else draw(k, n, seed=1)
    before = x.copy(), weight.copy()
    wanted = x.astype(np.float64) @ weight.astype(np.float64) + (0.0 if b is None else b)
    wanted = np.maximum(wanted, 0) if relu else wanted
    got = ops.affine_constant(x, weight, b, relu)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(weight, before[1])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_every_ending(ops, m, k, n, bias, transposed):
    for relu in (False, True):
        check(ops, m, k, n, bias, transposed, relu)
        check(numpy_ops, m, k, n, bias, transposed, relu)


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_two_threads(library_path, monkeypatch, m, k, n):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(2)
    check(OneDnnOps(library_path, required=True), m, k, n)


def test_small_products_are_numpys_where_they_are_not_compiled(ops, plans, compiler):
    before = plans()
    check(ops, 1, 64, 64, bias=False)
    assert (plans() == before) is not compiler
    # With what follows, one call is quicker than two.
    check(ops, 1, 64, 64)
    assert plans() > before


def test_other_types_and_layouts_are_numpys(ops, plans):
    x, w = draw(64, 60), draw(120, 100, seed=1)
    before = plans()
    np.testing.assert_allclose(
        ops.affine_constant(x, w[::2], None), x @ w[::2], rtol=1e-5, atol=1e-4
    )
    double = ops.affine_constant(x.astype(np.float64), w[:60].astype(np.float64), None)
    assert double.dtype == np.float64
    assert ops.affine_constant(x[:0], w[:60], None).shape == (0, 100)
    assert plans() == before
