"""Matrices of fewer bits: their numbers and products, by every backend and on a device."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial, partialmethod
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet, load_model
from singanet.checkpoint.gguf_blocks import BLOCKS
from singanet.device import cpu
from singanet.layers import Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import casts
from singanet.ops import narrow as matrices
from singanet.ops import narrow_products as compiled
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import ROWS
from singanet.ops.narrow import (
    Bfloat16Matrix,
    BlockMatrix,
    HalvesMatrix,
    NarrowMatrix,
    WatchedMatrix,
)
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.products import narrowed
from singanet.optimizer import SGD
from singanet.program.ir import multiplied_halves
from singanet.program.trace import kernels
from singanet.testing import strict_device

SIZES = [(32, 64), (64, 200), (576, 192), (96, 50), (32, 4200)]
KINDS = {"Q8_0": (2, 32), "Q4_0": (2, 16), "Q4_1": (4, 16)}
"""The bytes of scales and of integers in a block of 32 numbers."""
ALL = ["bfloat16", *KINDS]
ANY = [*ALL, "halves"]
EVERY = pytest.mark.parametrize("kind", ALL)
needs_compiler = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


def words_of(rng, inputs, outputs):
    """The words of random numbers in bfloat16, and the numbers."""
    words = (rng.standard_normal((inputs, outputs), np.float32).view(np.uint32) >> 16).astype("u2")
    return words, (words.astype(np.uint32) << 16).view(np.float32)


def blocks(kind, inputs, outputs, seed=0):
    """Random blocks as in files, and their numbers by the format's own reader."""
    rng, (halves, codes) = np.random.default_rng(seed), KINDS[kind]
    count = outputs * inputs // 32
    raw = rng.integers(0, 256, (count, halves + codes), np.uint8)
    scales = (0.1 * rng.standard_normal((count, halves // 2))).astype("<f2")
    raw[:, :halves] = scales.view(np.uint8)
    held, by_column = BlockMatrix(inputs, outputs, kind), raw.reshape(outputs, -1, halves + codes)
    for slab, columns in held.slabs:
        held.put(slab, by_column[columns])
    return held, BLOCKS[kind].decode(raw).reshape(outputs, inputs).T


def made(kind, inputs, outputs, seed=0):
    """A matrix of a kind, and its numbers."""
    rng = np.random.default_rng(seed)
    if kind == "halves":
        halves = rng.standard_normal((inputs, outputs)).astype(np.float16)
        return HalvesMatrix(halves), halves.astype(np.float32)
    if kind != "bfloat16":
        return blocks(kind, inputs, outputs, seed)
    words, floats = words_of(rng, inputs, outputs)
    held = Bfloat16Matrix(inputs, outputs)
    held.put(0, words)
    return held, floats


def expect_product(y, x, floats):
    exact = x.astype(np.float64) @ floats
    scale = np.abs(x.astype(np.float64)) @ np.abs(floats)
    assert y.dtype == np.float32
    assert np.all(np.abs(y - exact) <= 1e-6 * scale + 1e-30)


# -- Every backend --------------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "not compiled"])
def few_rows(request, monkeypatch):
    """Products of few rows by LLVM, or by the backend alone."""
    if request.param == "compiled" and not has_compiler():
        pytest.skip("llvmlite is not installed")
    monkeypatch.setattr(compiled, "has_compiler", lambda: request.param == "compiled")


def all_ops():
    """NumPy's kernels, the default ones, and if possible kernels that multiply bfloat16."""
    found = [numpy_ops, cpu().ops]
    library = found[1].library() if isinstance(found[1], OneDnnBase) else None
    if library is not None and library.bfloat16:
        found.append(narrowed(found[1], "test"))
    return found


@EVERY
@pytest.mark.parametrize("size", SIZES)
def test_it_has_the_numbers_that_were_put(kind, size):
    held, floats = made(kind, *size)
    np.testing.assert_array_equal(np.asarray(held), floats)
    np.testing.assert_array_equal(np.asarray(held.T), floats.T)
    assert np.asarray(held, np.float64).dtype == np.float64
    assert held.shape == held.T.T.shape == size
    assert held.T.shape == size[::-1]
    assert (len(held), len(held.T)) == size
    assert held.size == floats.size
    for start, stop in ((0, size[1]), (0, min(64, size[1])), (64, size[1])):
        if start < stop:
            np.testing.assert_array_equal(held.columns(start, stop), floats[:, start:stop])


@EVERY
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_products_in_every_backend(few_rows, kind, rows):
    rng = np.random.default_rng(rows)
    for size in SIZES:
        held, floats = made(kind, *size)
        x, dy = (rng.standard_normal((rows, n), np.float32) for n in size)
        bias = rng.standard_normal(size[1], np.float32)
        exact, back = x.astype(np.float64) @ floats, dy.astype(np.float64) @ floats.T
        for ops in all_ops():
            near = 1e-5 if ops is numpy_ops else 1e-2
            bound, other = (
                {"rtol": 0, "atol": near * np.abs(each).max()} for each in (exact, back)
            )
            y = ops.matmul(x, held)
            np.testing.assert_allclose(y, exact, **bound)
            assert y.flags.c_contiguous
            np.testing.assert_allclose(ops.affine(x, held, bias), exact + bias, **bound)
            out = np.empty_like(back, np.float32)
            assert ops.matmul(dy, held.T, out=out) is out
            np.testing.assert_allclose(out, back, **other)
            # Rows with gaps between, in and out.
            wide = np.zeros((rows, 2 * size[1]), np.float32)
            wide[:, ::2] = dy
            out = np.empty((rows, 2 * size[0]), np.float32)[:, ::2]
            ops.matmul(wide[:, ::2], held.T, out=out)
            np.testing.assert_allclose(out, back, **other)


@EVERY
def test_rows_zeros_nan_and_nothing(few_rows, kind):
    held, floats = made(kind, 64, 300)
    ids = np.array([[0, 299, 5], [64, 63, 5]])
    for ops in all_ops():
        np.testing.assert_array_equal(ops.gather_rows(held.T, ids), floats.T[ids])
        np.testing.assert_array_equal(ops.gather_rows(held, ids % 64), floats[ids % 64])
        assert not ops.matmul(np.zeros((1, 64), np.float32), held).any()
        assert ops.matmul(np.zeros((0, 64), np.float32), held).shape == (0, 300)
        for value in (np.nan, np.inf):
            x = np.ones((2, 64), np.float32)
            x[1, 3] = value
            with np.errstate(invalid="ignore"):
                y = ops.matmul(x, held)
            assert np.isfinite(y[0]).all()
            assert not np.isfinite(y[1]).any()


def test_rows_are_not_rounded_to_be_multiplied_by_blocks(few_rows):
    held, floats = blocks("Q8_0", 576, 192)
    x = np.random.default_rng(1).standard_normal((2, 576), np.float32)
    for ops in all_ops():
        expect_product(ops.matmul(x, held), x, floats)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 70), st.integers(1, 140), st.integers(0, 5))
def test_words_of_any_size_come_back(inputs, outputs, seed):
    held, floats = made("bfloat16", inputs, outputs, seed)
    words, _ = words_of(np.random.default_rng(seed), inputs, outputs)
    np.testing.assert_array_equal(held.get(0, outputs), words)
    np.testing.assert_array_equal(np.asarray(held), floats)


def test_the_bytes_of_matrices():
    numbers = 576 * 1536
    assert Bfloat16Matrix(576, 1536).nbytes == 2 * numbers
    for kind, sizes in KINDS.items():
        assert BlockMatrix(576, 1536, kind).nbytes == numbers // 32 * sum(sizes)


def test_a_copy_has_memory_of_its_own():
    held, floats = made("bfloat16", 32, 64)
    other = copy.deepcopy(held)
    other.words[...] = 0
    np.testing.assert_array_equal(np.asarray(held), floats)


@EVERY
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_without_products_of_bfloat16_onednn_widens_nothing(few_rows, kind, rows, monkeypatch):
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


# -- Compiled products ----------------------------------------------------------------------------


@needs_compiler
@given(
    st.sampled_from(ALL),
    st.integers(1, 7),
    st.integers(1, 200),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_few_rows_of_any_size(kind, count, outputs, rows, seed):
    inputs = count * (1 if kind == "bfloat16" else 32)
    held, floats = made(kind, inputs, outputs, seed)
    x = np.random.default_rng(seed).standard_normal((rows, 2 * inputs), np.float32)
    x = x[:, :inputs] if seed % 3 else x[:, ::2]
    for array in (x, *held.arrays):
        array.setflags(write=False)
    assert compiled.few_rows.fits(numpy_ops, x, held)
    y = compiled.few_rows.run(numpy_ops, x, held)
    assert y.shape == (rows, outputs)
    assert y.flags.c_contiguous
    expect_product(y, x, floats)
    for shape in ((rows, outputs), (rows, 2 * outputs)):
        out = np.full(shape, np.nan, np.float32)[:, :: shape[1] // outputs]
        assert compiled.few_rows.run(numpy_ops, x, held, out=out) is out
        np.testing.assert_array_equal(out, y)


class Shared:
    """Kernels of several threads; the last part runs first, since none needs another."""

    xp = np

    def __init__(self, threads=3):
        self.threads, self.shares = threads, []

    def team(self):
        return self.threads, self.do

    def do(self, parts):
        for part in reversed(parts):
            for work in part:
                self.shares.append(getattr(work, "args", ())[-2:])
                work()


@needs_compiler
@EVERY
def test_threads_share_panels_of_few_rows(kind, monkeypatch):
    held, _ = made(kind, 64, 700)
    x = np.random.default_rng(2).standard_normal((2, 64), np.float32)
    alone = compiled.few_rows.run(numpy_ops, x, held)
    monkeypatch.setattr(compiled, "_SHARED", held.arrays[0].nbytes)
    for threads in (1, 2, 3, 30):
        ops = Shared(threads)
        np.testing.assert_array_equal(compiled.few_rows.run(ops, x, held), alone)
        covered = sorted(ops.shares)
        assert covered[0][0] == 0
        assert all(one[1] == two[0] for one, two in pairwise(covered))
        assert len(covered) == min(threads, 11)
    monkeypatch.setattr(compiled, "_SHARED", held.arrays[0].nbytes + 1)
    compiled.few_rows.run(None, x, held)  # asks nobody for threads


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [3, 5, 8, 13, ROWS])
def test_rows_of_bytes_have_the_same_products_beside_others(kind, rows):
    held, floats = made(kind, 96, 130)
    x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
    out = np.full((rows, 130), np.nan, np.float32)
    if compiled.few_rows.fits(numpy_ops, x, held):
        assert compiled.few_rows.run(numpy_ops, x, held, out=out) is out
        expect_product(out, x, floats)
        alone = [compiled.few_rows.run(numpy_ops, x[k : k + 1], held) for k in range(rows)]
        np.testing.assert_array_equal(out, np.concatenate(alone))


@needs_compiler
@pytest.mark.parametrize(("rows", "inputs"), [(5, 70), (7, 640), (8, 161), (9, 64), (ROWS, 30)])
def test_rounded_rows_have_the_same_products_beside_others(rows, inputs):
    from singanet.ops.compiled import engine

    if not engine.multiplies_words():
        pytest.skip("only processors with AVX-512 for bfloat16 multiply rounded rows")
    held, floats = made("bfloat16", inputs, 130)
    x = np.random.default_rng(rows).standard_normal((rows, inputs), np.float32)
    rounding = SimpleNamespace(xp=np, rounds_rows=lambda: True, team=lambda: (1, None))
    y = compiled.few_rows.run(rounding, x, held)
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)
    expect_product(y, rounded, floats)
    x[0, 5] = np.nan
    again = compiled.few_rows.run(rounding, x[::-1], held)[::-1]
    assert np.isnan(again[0]).all()
    np.testing.assert_array_equal(again[1:], y[1:])


@needs_compiler
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_the_largest_sums_of_pairs_of_bytes_fit(kind):
    """Rows whose bytes all have the largest size, times the largest codes."""
    held, _ = made(kind, 64, 64)
    held.codes[...] = 0xFF
    floats = np.asarray(held)
    # Their two lowest bytes are 127 or, with what is carried, -128.
    for whole in (0x3F7F7F, 0x3F7F80):
        x = np.full((1, 64), whole, np.float32)
        x[:, ::32] = 2**22
        for sign in (1, -1):
            expect_product(numpy_ops.matmul(sign * x, held), sign * x, floats)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_rows_as_bytes_are_exact_to_float32(kind):
    """Small numbers in a block beside large ones, and blocks far apart."""
    held, floats = made(kind, 64, 64)
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((2, 64)) * 10.0 ** rng.integers(-6, 6, (2, 64))).astype(np.float32)
    y = numpy_ops.matmul(x, held)
    size = np.abs(x).max(axis=1, keepdims=True) * np.abs(floats).sum(axis=0)
    assert (np.abs(y - x.astype(np.float64) @ floats) <= 2.0**-22 * size).all()


@needs_compiler
@pytest.mark.parametrize("registers", ["few", "many", "pairs of bytes"])
@settings(max_examples=20)
@given(
    st.sampled_from(ALL), st.integers(1, 5), st.integers(1, 200), st.integers(2, ROWS),
    st.integers(0, 99),
)  # fmt: skip
def test_rows_have_the_same_products_beside_others(registers, kind, count, outputs, rows, seed):
    """With the registers of any processor, for which this one's stand in."""
    from singanet.ops.compiled import engine, panels

    wide, pairs = registers == "many", registers == "pairs of bytes"
    if pairs and not engine._features().get("avx2", False):
        pytest.skip("only processors with AVX2 add products of pairs of bytes")
    with pytest.MonkeyPatch.context() as patch:
        made_of = engine.compiled
        patch.setattr(compiled, "_wide", lambda: False)
        patch.setattr(compiled, "_multiplies_bytes", lambda: False)
        patch.setattr(compiled, "_words", lambda: known(made_of, panels.words_product, wide))
        case = wide, False, pairs
        whole = lambda kind: known(made_of, panels.blocks_product, kind, *case)  # noqa: E731
        patch.setattr(compiled, "_wholes", whole)
        held, floats = made(kind, 32 * count, outputs, seed)
        x = np.random.default_rng(seed).standard_normal((rows, 32 * count), np.float32)
        assert compiled.few_rows.fits(numpy_ops, x, held)
        y = compiled.few_rows.run(numpy_ops, x, held)
        expect_product(y, x, floats)
        for row in range(rows):
            alone = compiled.few_rows.run(numpy_ops, x[row : row + 1], held)
            np.testing.assert_array_equal(y[row : row + 1], alone)


@cache
def known(made_of, write, *case):
    return made_of(write(*case))


@needs_compiler
def test_the_limits_of_few_rows(monkeypatch):
    fits = partial(compiled.few_rows.fits, numpy_ops)
    for wide, dots, kind, most in (
        (True, False, "bfloat16", ROWS), (False, False, "bfloat16", ROWS), (True, False, "Q8_0", 4),
        (False, False, "Q8_0", ROWS), (True, True, "Q4_1", ROWS),
    ):  # fmt: skip
        monkeypatch.setattr(compiled, "_wide", lambda wide=wide: wide)
        monkeypatch.setattr(compiled, "_multiplies_bytes", lambda dots=dots: dots)
        held, _ = made(kind, 32, 64)
        x = np.ones((ROWS + 1, 32), np.float32)
        assert fits(x[:most], held)
        assert not fits(x[: most + 1], held)
    held, _ = made("bfloat16", 32, 64)
    rounding = SimpleNamespace(xp=np, rounds_rows=lambda: True)
    for words, most in ((False, 4), (True, ROWS)):
        monkeypatch.setattr(compiled, "_multiplies_words", lambda words=words: words)
        assert compiled.few_rows.fits(rounding, x[:most], held)
        assert not compiled.few_rows.fits(rounding, x[: most + 1], held)
    held, _ = made("Q4_1", 32, 64)
    x = x[:4]
    assert not fits(x[:0], held)
    assert not fits(x.astype(np.float64), held)
    assert not fits(np.ones((4, 64), np.float32), held.T)


@needs_compiler
@pytest.mark.parametrize("found", ["", "0.44.0", "0.45.0", "0.46.0rc1", "1.0", "git"])
def test_without_a_known_release_of_the_compiler_numpy_serves(found, monkeypatch):
    held, floats = made("Q4_1", 64, 100)
    x = np.ones((1, 64), np.float32)
    # Python does not import a module whose entry is None.
    named = SimpleNamespace(__version__=found) if found else None
    monkeypatch.setitem(sys.modules, "llvmlite", named)
    casts.has_compiler.cache_clear()
    try:
        known = found.startswith(("0.45", "0.46", "1"))
        assert compiled.few_rows.fits(numpy_ops, x, held) == known
        expect_product(numpy_ops.matmul(x, held), x, floats)
    finally:
        casts.has_compiler.cache_clear()


@needs_compiler
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ANY)
@pytest.mark.few(3)
def test_on_the_plainest_processor(kind, transposed, monkeypatch):
    """Without vectors of 512 bits, fused multiply-adds or float16."""
    from singanet.ops.compiled import panels
    from singanet.ops.compiled.engine import compiled as function_of

    plain = partial(function_of, processor="generic")
    monkeypatch.setattr(compiled, "_multiplies_bytes", lambda: False)
    monkeypatch.setattr(compiled, "_words", lambda: plain(panels.words_product(False)))
    monkeypatch.setattr(
        compiled, "_wholes", lambda kind: plain(panels.blocks_product(kind, False, False))
    )
    monkeypatch.setattr(compiled, "_panels",
                        lambda *case: plain(panels.panel_product(*case, 1)).call)  # fmt: skip
    held, floats = made(kind, *((64, 128) if kind == "halves" else (128, 300)))
    for route, rows in ((compiled.few_rows, 2), (compiled.any_rows, 8)):
        one, other = (held.T, floats.T) if transposed else (held, floats)
        x = np.random.default_rng(3).standard_normal((rows, len(other)), np.float32)
        if route.fits(numpy_ops, x, one):
            expect_product(route.run(numpy_ops, x, one), x, other)
        else:
            assert route is compiled.few_rows


def expect_any_rows(rng, kind):
    """Check a random product of rows in any layout with a matrix or its transpose."""
    inputs = int(rng.integers(1, 7)) * {"halves": 64}.get(kind, 32)
    if kind == "bfloat16":
        inputs = int(rng.integers(1, 200))
    outputs = int(rng.choice([1, 63, 64, 65, 4200, rng.integers(1, 200)]))
    if kind == "halves":
        outputs = 64 * int(rng.integers(1, 5))
    held, floats = made(kind, inputs, outputs, int(rng.integers(99)))
    if rng.integers(2):
        held, floats = held.T, floats.T
    (wide, high), rows = floats.shape, int(rng.integers(1, 20))
    x = rng.standard_normal((2 * rows, 2 * wide), np.float32)
    whole = x[:rows, :wide]
    layouts = np.ascontiguousarray(whole), whole, x[::2, ::2], np.asfortranarray(whole)[::-1]
    x = layouts[rng.integers(4)]
    room = np.full((rows, 2 * high), np.nan, np.float32)
    out = (None, room[:, :high], room[:, ::2])[rng.integers(3)]
    ops = (numpy_ops, Shared())[rng.integers(2)]
    assert compiled.any_rows.fits(ops, x, held)
    y = compiled.any_rows.run(ops, x, held, out=out)
    assert out is None or y is out
    assert y.shape == (rows, high)
    expect_product(y, x, floats)
    assert np.isnan(room).sum() >= room.size // 2


@needs_compiler
@settings(max_examples=20)
@pytest.mark.parametrize("kind", ANY)
@given(st.integers(0, 1 << 30))
def test_any_rows(kind, seed):
    expect_any_rows(np.random.default_rng(seed), kind)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ANY)
def test_thousands_of_any_rows(kind, monkeypatch):
    monkeypatch.setattr(compiled, "_SHARED", 1 << 12)
    rng = np.random.default_rng(11)
    for _ in range(3000):
        expect_any_rows(rng, kind)


@needs_compiler
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ANY)
def test_threads_that_share_any_rows_make_the_same_bits(kind, transposed, monkeypatch):
    held, _ = made(kind, 192, 4224 if kind == "halves" else 4200)
    held = held.T if transposed else held
    x = np.random.default_rng(5).standard_normal((7, len(held)), np.float32)
    alone = compiled.any_rows.run(numpy_ops, x, held)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    np.testing.assert_array_equal(compiled.any_rows.run(Shared(), x, held), alone)


def test_the_compiler_is_loaded_late():
    check = (
        "import sys, singanet.ops.numpy, singanet.ops.onednn; assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, env=dict(os.environ))


# -- Weights in float16 ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("size", [(1024, 64), (1, 70000), (70000, 1), (257, 258), (64, 1088)])
def test_float16_is_multiplied_in_float32_in_any_layout(rows, size):
    """A weight that is not small is widened in parts, at any extents."""
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal(size).astype(np.float16)
    x = (rng.standard_normal((rows, size[0])) / size[0] ** 0.5).astype(np.float16)
    want = (x.astype(np.float64) @ weight).astype(np.float16)
    bias = np.ones(size[1], np.float16)
    for ops in (numpy_ops, cpu().ops):
        for layout in (weight, np.asfortranarray(weight), np.repeat(weight, 2, 1)[:, ::2]):
            y = ops.matmul(x, layout)
            assert y.dtype == np.float16
            np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(ops.affine(x, layout, bias), want + 1, rtol=2e-3, atol=4e-3)
            out = np.empty_like(y)
            assert ops.matmul(x, layout, out=out) is out
            np.testing.assert_array_equal(out, y)
            stack = ops.matmul(np.stack([x, x]), layout)
            np.testing.assert_allclose(stack, [want, want], rtol=2e-3, atol=2e-3)


def test_casts_have_numpys_bits():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_003, np.uint32)
    floats = bits.view(np.float32)
    transposed = np.asfortranarray(floats[:9000].reshape(90, 100))
    with np.errstate(over="ignore"):
        for x, kind in ((every, np.float32), (floats, np.float16), (transposed, np.float16)):
            found = casts.cast(x, kind)
            np.testing.assert_array_equal(found, x.astype(kind))
            assert found.dtype == kind
            assert found.strides == x.astype(kind).strides


@needs_compiler
@pytest.mark.parametrize("units", [256, 250])
def test_a_loaded_net_of_float16_weights_continues_to_the_bit(units, tmp_path, monkeypatch):
    """Its first step uses the layers, and the other net's is recorded."""
    calls = []

    def counted(*given):
        calls.append(given)
        multiplied_halves(*given)

    monkeypatch.setattr(kernels, "multiplied_halves", counted)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 1600)).astype(np.float32), rng.integers(0, units, 64)
    layers = [Dense("a", 320, input_sample_shape=(1600,)), Dense("b", 320), Dense("c", units)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(SGD(lr=1.0), mixed_precision="float16")
    for _ in range(3):
        net.train_on_batch(x, y)
    assert calls, "recorded steps multiply float16 as the layers do"
    net.save_model(tmp_path / "m.singanet")
    again = load_model(tmp_path / "m.singanet")
    for _ in range(2):
        assert net.train_on_batch(x, y) == again.train_on_batch(x, y)
        for one, other in zip(net.params(), again.params(), strict=True):
            assert one.value.dtype == np.float16
            np.testing.assert_array_equal(one.value, other.value)


# -- On a device ----------------------------------------------------------------------------------


def expect_alike(near, far, device, seed, rows=3):
    """Check that ``far`` on the device has the numbers, rows and products of ``near``."""
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


@EVERY
@pytest.mark.parametrize("size", [(32, 64), (96, 50), (64, 4200)])
def test_moved_to_a_device_and_back(kind, size, gpu):
    near, _ = made(kind, *size)
    far = near.moved(gpu.put)
    assert far.xp is gpu.ops.xp
    assert far.nbytes == near.nbytes
    expect_alike(near, far, gpu, 0)
    for one, other in zip(far.moved(gpu.ops.host).arrays, near.arrays, strict=True):
        assert type(one) is np.ndarray
        np.testing.assert_array_equal(one, other)


@given(
    st.sampled_from(ALL), st.integers(1, 4), st.integers(1, 300), st.integers(1, 9), st.integers()
)
def test_any_size_on_a_device(kind, inputs, outputs, rows, seed):
    device = strict_device()
    # Blocks are of 32 inputs; words are of any number.
    inputs = 32 * inputs - (seed % 32 if kind == "bfloat16" else 0)
    near, _ = made(kind, inputs, outputs)
    expect_alike(near, near.moved(device.put), device, abs(seed), rows)


@EVERY
def test_parts_on_a_device_are_summed(kind, gpu, monkeypatch):
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


@EVERY
def test_nan_shows_on_a_device(kind, gpu):
    near, _ = made(kind, 64, 128)
    far, x = near.moved(gpu.put), np.ones((3, 64), np.float32)
    x[0, 3], x[1, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        y = gpu.ops.host(gpu.ops.matmul(gpu.put(x), far))
    assert np.isnan(y[0]).all()
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[2]).all()


def test_nan_among_scales_stays_in_its_block(gpu):
    near, _ = blocks("Q4_1", 64, 70)
    near.scales[0, 1, 3], near.minima[0, 0, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want, far = near.whole(), near.moved(gpu.put)
        np.testing.assert_array_equal(gpu.ops.host(far.whole()), want)
        ids = np.array([3, 5, 6])
        rows = gpu.ops.host(gpu.ops.gather_rows(far.T, gpu.put(ids)))
    np.testing.assert_array_equal(rows, want.T[ids])


def test_a_watched_matrix_passes_on_the_rows(gpu):
    seen, rng = [], np.random.default_rng(0)
    values, x = rng.standard_normal((8, 5), np.float32), rng.standard_normal((2, 8), np.float32)
    watched = WatchedMatrix(gpu.put(values), seen.append)
    y = gpu.ops.host(gpu.ops.matmul(gpu.put(x), watched))
    np.testing.assert_allclose(y, x @ values, rtol=1e-5, atol=1e-6)
    assert [gpu.ops.host(each).tolist() for each in seen] == [x.tolist()]
