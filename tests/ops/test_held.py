"""Matrices of fewer bits: what they hold, and products with them against float64."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet.checkpoint.gguf_blocks import BLOCKS
from singanet.device import cpu
from singanet.ops import narrow_products as compiled
from singanet.ops.casts import has_compiler
from singanet.ops.narrow import Bfloat16Matrix, BlockMatrix
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.products import narrowed

SIZES = [(32, 64), (64, 200), (576, 192), (96, 50), (32, 4200)]
KINDS = {"Q8_0": (2, 32), "Q4_0": (2, 16), "Q4_1": (4, 16)}


@pytest.fixture(autouse=True, params=["compiled", "not compiled"])
def few_rows(request, monkeypatch):
    """Products of few rows are what LLVM makes of them, or those of the backend alone."""
    if request.param == "compiled" and not has_compiler():
        pytest.skip("llvmlite is not installed")
    monkeypatch.setattr(compiled, "has_compiler", lambda: request.param == "compiled")


def all_ops():
    """NumPy's kernels, the default ones, and those that multiply bfloat16 where there are some."""
    found = [numpy_ops, cpu().ops]
    ops = found[1]
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if library is not None and library.bfloat16:
        found.append(narrowed(ops, "test"))
    return found


def words_of(rng, inputs, outputs):
    """A matrix of numbers that bfloat16 has: their upper halves, and itself."""
    words = (rng.standard_normal((inputs, outputs), np.float32).view(np.uint32) >> 16).astype("u2")
    return words, (words.astype(np.uint32) << 16).view(np.float32)


def bfloat16(inputs, outputs, seed=0):
    words, floats = words_of(np.random.default_rng(seed), inputs, outputs)
    held = Bfloat16Matrix(inputs, outputs)
    held.put(0, words)
    return held, floats


def blocks(kind, inputs, outputs, seed=0):
    """Random blocks as they lie in files, and the numbers that they are read as there."""
    rng, (halves, codes) = np.random.default_rng(seed), KINDS[kind]
    count = outputs * inputs // 32
    raw = rng.integers(0, 256, (count, halves + codes), np.uint8)
    scales = (0.1 * rng.standard_normal((count, halves // 2))).astype("<f2")
    raw[:, :halves] = scales.view(np.uint8)
    held, by_column = BlockMatrix(inputs, outputs, kind), raw.reshape(outputs, -1, halves + codes)
    for slab, columns in held.slabs:
        held.put(slab, by_column[columns])
    return held, BLOCKS[kind].decode(raw).reshape(outputs, inputs).T


def made(kind, inputs, outputs):
    if kind == "bfloat16":
        return bfloat16(inputs, outputs)
    return blocks(kind, inputs, outputs)


@pytest.mark.parametrize("kind", ["bfloat16", *KINDS])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_numbers_that_were_put(kind, size):
    held, floats = made(kind, *size)
    np.testing.assert_array_equal(np.asarray(held), floats)
    np.testing.assert_array_equal(np.asarray(held.T), floats.T)
    assert np.asarray(held, np.float64).dtype == np.float64
    assert held.shape == size
    assert held.T.shape == size[::-1]
    assert held.T.T.shape == size
    assert len(held) == size[0]
    assert len(held.T) == size[1]
    assert held.size == floats.size
    for start, stop in ((0, size[1]), (0, min(64, size[1])), (64, size[1])):
        if start < stop:
            np.testing.assert_array_equal(held.columns(start, stop), floats[:, start:stop])


@pytest.mark.parametrize("kind", ["bfloat16", *KINDS])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_products_are_those_of_the_numbers(kind, rows):
    rng = np.random.default_rng(rows)
    for size in SIZES:
        held, floats = made(kind, *size)
        x = rng.standard_normal((rows, size[0]), np.float32)
        dy = rng.standard_normal((rows, size[1]), np.float32)
        bias = rng.standard_normal(size[1], np.float32)
        exact = x.astype(np.float64) @ floats
        back = dy.astype(np.float64) @ floats.T
        for ops in all_ops():
            near = 1e-5 if ops is numpy_ops else 1e-2
            bound = near * np.abs(exact).max()
            y = ops.matmul(x, held)
            np.testing.assert_allclose(y, exact, rtol=0, atol=bound)
            # Kernels after it write into it.
            assert y.flags.c_contiguous
            np.testing.assert_allclose(ops.affine(x, held, bias), exact + bias, rtol=0, atol=bound)
            out = np.empty_like(back, np.float32)
            assert ops.matmul(dy, held.T, out=out) is out
            np.testing.assert_allclose(out, back, rtol=0, atol=near * np.abs(back).max())
            # Rows that lie apart, and a place that does.
            wide = np.zeros((rows, 2 * size[1]), np.float32)
            wide[:, ::2] = dy
            out = np.empty((rows, 2 * size[0]), np.float32)[:, ::2]
            ops.matmul(wide[:, ::2], held.T, out=out)
            np.testing.assert_allclose(out, back, rtol=0, atol=near * np.abs(back).max())


@pytest.mark.parametrize("kind", ["bfloat16", *KINDS])
def test_rows_of_a_table_are_picked(kind):
    held, floats = made(kind, 64, 300)
    ids = np.array([[0, 299, 5], [64, 63, 5]])
    for ops in all_ops():
        np.testing.assert_array_equal(ops.gather_rows(held.T, ids), floats.T[ids])
        np.testing.assert_array_equal(ops.gather_rows(held, ids % 64), floats[ids % 64])


def test_rows_are_not_rounded_to_be_multiplied_by_blocks():
    held, floats = blocks("Q8_0", 576, 192)
    x = np.random.default_rng(1).standard_normal((2, 576), np.float32)
    bound = 1e-6 * np.abs(x) @ np.abs(floats)
    for ops in all_ops():
        assert np.all(np.abs(ops.matmul(x, held) - x.astype(np.float64) @ floats) <= bound)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 70), st.integers(1, 140), st.integers(0, 5))
def test_words_of_any_size_come_back(inputs, outputs, seed):
    held, floats = bfloat16(inputs, outputs, seed)
    words, _ = words_of(np.random.default_rng(seed), inputs, outputs)
    np.testing.assert_array_equal(held.get(0, outputs), words)
    np.testing.assert_array_equal(np.asarray(held), floats)
    x = np.random.default_rng(seed).standard_normal((2, inputs), np.float32)
    np.testing.assert_allclose(numpy_ops.matmul(x, held), x @ floats, rtol=1e-4, atol=1e-4)


def test_rows_of_zeros_and_empty_ones():
    for kind in ("bfloat16", *KINDS):
        held, _ = made(kind, 64, 64)
        for ops in all_ops():
            assert not ops.matmul(np.zeros((1, 64), np.float32), held).any()
            assert ops.matmul(np.zeros((0, 64), np.float32), held).shape == (0, 64)


@pytest.mark.parametrize("kind", ["bfloat16", *KINDS])
def test_what_is_no_number_shows(kind):
    held, _ = made(kind, 64, 128)
    for value in (np.nan, np.inf):
        x = np.ones((2, 64), np.float32)
        x[1, 3] = value
        for ops in all_ops():
            with np.errstate(invalid="ignore"):
                y = ops.matmul(x, held)
            assert np.isfinite(y[0]).all()
            assert not np.isfinite(y[1]).any()


def test_what_is_held_is_a_half_a_quarter_or_an_eighth_with_scales():
    assert Bfloat16Matrix(576, 1536).nbytes == 2 * 576 * 1536
    sizes = {kind: BlockMatrix(576, 1536, kind).nbytes for kind in KINDS}
    numbers = 576 * 1536
    bytes_of_blocks = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
    assert sizes == {kind: numbers // 32 * size for kind, size in bytes_of_blocks.items()}


def test_a_copy_is_apart():
    held, floats = bfloat16(32, 64)
    other = copy.deepcopy(held)
    other.words[...] = 0
    np.testing.assert_array_equal(np.asarray(held), floats)


@pytest.mark.parametrize("kind", ["bfloat16", *KINDS])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_without_products_of_bfloat16_nothing_is_widened_by_onednn(kind, rows, monkeypatch):
    """Its copies from other layouts take a hundred times as long without AVX-512."""
    ops = cpu().ops
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if library is None:
        pytest.skip("oneDNN is not installed")
    monkeypatch.setattr(type(ops), "library", lambda self: replace(library, bfloat16=False))
    monkeypatch.setattr(type(ops), "runs", None)
    held, floats = made(kind, 96, 200)
    for matrix, plain in ((held, floats), (held.T, floats.T)):
        x = np.random.default_rng(rows).standard_normal((rows, len(plain)), np.float32)
        np.testing.assert_allclose(ops.multiply_held(x, matrix), x @ plain, rtol=0, atol=1e-3)
