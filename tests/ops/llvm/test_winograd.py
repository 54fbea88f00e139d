"""Convolutions in compiled tiles: the same as by the definition, with bits of the sizes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.costs import Case
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import winograd as llvm_tiles
from singanet.ops.window import Window

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")

SAME = ((1, 1), (1, 1))
PLAIN = Window((3, 3), (1, 1), SAME)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def close(got, wanted):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 * max(abs(wanted).max(), 1e-6))


@st.composite
def convolutions(draw):
    taps = draw(st.sampled_from([3, 5]))
    pads = st.integers(0, taps - 1)
    window = Window((taps, taps), (1, 1), tuple((draw(pads), draw(pads)) for _ in range(2)))
    side = st.integers(taps, 13)
    n, c, f = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 70))
    return window, (n, c, draw(side), draw(side)), f


@given(convolutions())
@settings(max_examples=25, deadline=None)
def test_equals_the_definition(convolution):
    """Gradients of kernels sum up most: their error is that of so many numbers."""
    ops = LlvmOps()
    window, shape, f = convolution
    x, k, b = draw(*shape), draw(f, shape[1], *window.kernel, seed=1), draw(f, seed=2)
    dy = draw(shape[0], f, *window._out_size(*shape[2:]), seed=3)
    x64, k64, b64, dy64 = (a.astype(np.float64) for a in (x, k, b, dy))
    close(llvm_tiles.forward(ops, x, k, b, window), numpy_ops.conv2d(x64, k64, b64, window))
    close(
        llvm_tiles.data(ops, dy, k, x.shape, window),
        numpy_ops.conv2d_backward_data(dy64, k64, x.shape, window),
    )
    close(
        llvm_tiles.weights(ops, x, dy, k.shape, window),
        numpy_ops.conv2d_backward_weights(x64, dy64, k.shape, window),
    )
    added = draw(*dy.shape, seed=4)
    for relu in (False, True):
        wanted = numpy_ops.conv2d(x64, k64, b64, window) + added
        got = llvm_tiles.constant(ops, x, k, b, window, relu=relu, add=added)
        close(got, np.maximum(wanted, 0) if relu else wanted)


def all_of(ops, n=9, c=20, f=30, size=17):
    x, k, dy = draw(n, c, size, size), draw(f, c, 3, 3, seed=1), draw(n, f, size, size, seed=2)
    return [
        llvm_tiles.forward(ops, x, k, draw(f), PLAIN),
        llvm_tiles.data(ops, dy, k, x.shape, PLAIN),
        llvm_tiles.weights(ops, x, dy, k.shape, PLAIN),
    ]


def test_bits_do_not_depend_on_threads_or_blocks(monkeypatch):
    found = []
    for threads, block in ((1, 24), (2, 48), (3, 24), (1, 240)):
        ops = LlvmOps()
        monkeypatch.setattr(ops.runtime(), "threads", threads)
        with monkeypatch.context() as patch:
            patch.setattr(llvm_tiles.Geometry, "block", property(lambda self, block=block: block))
            # Of several parts, which threads share, and of one, at which all work in turns.
            found.append([*all_of(ops), *all_of(ops, n=4, c=40, f=100, size=13)])
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_parts_cover_all_tiles_and_depend_on_sizes_alone():
    case = Case("weights", (32, 16, 32, 32), (16, 16, 3, 3), PLAIN)
    parts = llvm_tiles.geometry_of(case).parts
    assert len(parts) == 4
    assert [last for _, last in parts[:-1]] == [first for first, _ in parts[1:]]
    assert (parts[0][0], parts[-1][1]) == (0, 32 * 8 * 8)
    # Few tiles of many channels are one part: sums of parts would take longer than the tiles.
    heavy = Case("weights", (8, 256, 14, 14), (256, 256, 3, 3), PLAIN)
    assert len(llvm_tiles.geometry_of(heavy).parts) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"window": Window((3, 3), (2, 2), SAME)},
        {"window": Window((3, 3), (1, 1), SAME, (2, 2))},
        {"window": Window((3, 5), (1, 1), SAME)},
        {"window": Window((7, 7), (1, 1), ((3, 3), (3, 3)))},
        {"window": Window((3, 3), (1, 1), ((3, 0), (0, 0)))},
        {"weight": (8, 4, 3, 3), "window": replace(PLAIN, groups=2)},
        {"x": (0, 8, 6, 6)},
    ],
)
def test_others_are_not_for_tiles(ops, other):
    usual = {"x": (2, 8, 6, 6), "weight": (8, 8, 3, 3), "window": PLAIN}
    case = Case("forward", **{**usual, **other})
    assert llvm_tiles.fits(ops, Case("forward", **usual))
    assert not llvm_tiles.fits(ops, case)


def test_without_a_compiler_none_is(ops, monkeypatch):
    monkeypatch.setattr(llvm_tiles, "has_compiler", lambda: False)
    assert not llvm_tiles.fits(ops, Case("forward", (2, 8, 6, 6), (8, 8, 3, 3), PLAIN))


def test_a_nan_stays_one_after_the_relu(ops):
    x, k = draw(1, 4, 8, 8), draw(5, 4, 3, 3, seed=1)
    x[0, 2, 3, 3] = np.nan
    got = llvm_tiles.constant(ops, x, k, None, PLAIN, relu=True)
    assert np.isnan(got[0, :, 2:5, 2:5]).all()


def test_numbers_of_any_size(ops):
    x, k = draw(2, 4, 8, 8), draw(4, 4, 3, 3, seed=1)
    y = llvm_tiles.forward(ops, x, k, None, PLAIN)
    for scale in (2.0**-60, 2.0**60):
        got = llvm_tiles.forward(ops, x * np.float32(scale), k, None, PLAIN)
        np.testing.assert_array_equal(got, y * np.float32(scale))


def test_where_registers_are_few(monkeypatch):
    """Panels of one vector, as on processors without AVX-512."""
    from singanet.ops.compiled import engine

    monkeypatch.setattr(engine, "is_wide", lambda: False)
    llvm_tiles._function.cache_clear()
    try:
        few_registers = all_of(LlvmOps(), n=2, f=70, size=9)
    finally:
        llvm_tiles._function.cache_clear()
    monkeypatch.undo()
    many = all_of(LlvmOps(), n=2, f=70, size=9)
    for got, wanted in zip(few_registers, many, strict=True):
        close(got, wanted.astype(np.float64))
