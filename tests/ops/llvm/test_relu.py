"""Relus that LLVM compiles: to the bit as NumPy's, NaN and memory around included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import kernels as llvm

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


def images(shape, seed):
    n, c, h, w = shape
    x = np.random.default_rng(seed).standard_normal((n, h, w, c), np.float32)
    x.flat[:: 7 + seed] = [np.nan, np.inf, -np.inf, -0.0][seed % 4]
    return x.transpose(0, 3, 1, 2)


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(0, 3), st.integers(1, 3))
def test_as_numpy_s_to_the_bit(shape, seed, threads):
    ops = LlvmOps()
    ops.runtime().threads = threads
    a, b = images(shape, seed), images(shape, seed + 1)
    np.testing.assert_array_equal(llvm.of_one.run(ops, "relu", a), numpy_ops.activation("relu", a))
    with np.errstate(invalid="ignore"):
        wanted = numpy_ops.combine("add", [a, b], a.shape, relu=True)
    got = llvm.of_sum.run(ops, "add", [a, b], a.shape, relu=True)
    np.testing.assert_array_equal(got, wanted)


def test_threads_share_long_arrays(ops, monkeypatch):
    monkeypatch.setattr(ops.runtime(), "threads", 3)
    x = np.random.default_rng(0).standard_normal(llvm._LEAST + 5, np.float32)
    np.testing.assert_array_equal(ops.activation("relu", x), np.maximum(x, 0))


def test_what_it_serves(ops):
    x = np.zeros((64, 2048), np.float32)
    assert llvm.of_one.fits(ops, "relu", x)
    assert llvm.of_sum.fits(ops, "add", [x, x], x.shape, relu=True)
    assert not llvm.of_one.fits(ops, "tanh", x)
    assert not llvm.of_one.fits(ops, "relu", x[:8])
    assert not llvm.of_one.fits(ops, "relu", x[:, ::2].repeat(2, 0)[::2])
    assert not llvm.of_one.fits(ops, "relu", x.astype(np.float64))
    assert not llvm.of_sum.fits(ops, "add", [x, x], x.shape)
    assert not llvm.of_sum.fits(ops, "multiply", [x, x], x.shape, relu=True)
    assert not llvm.of_sum.fits(ops, "add", [x, x, x], x.shape, relu=True)
    assert not llvm.of_sum.fits(ops, "add", [x, np.asfortranarray(x)], x.shape, relu=True)
