"""Convolutions of constant weights with what follows, against NumPy's in double precision."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from singanet.ops import numpy_ops, threads
from singanet.ops.costs import BUILT_IN, Case
from singanet.ops.kernel import NEVER
from singanet.ops.onednn import OneDnnOps, set_threads
from singanet.ops.window import Window

SAME = ((1, 1), (1, 1))
NONE = ((0, 0), (0, 0))
CASES = {
    "same": ((2, 5, 7, 9), 8, Window((3, 3), (1, 1), SAME)),
    "first layer": ((1, 3, 11, 8), 16, Window((7, 7), (2, 2), ((3, 3), (3, 3)))),
    "pixels": ((3, 16, 4, 4), 32, Window((1, 1), (1, 1), NONE)),
    "few pixels, large weight": ((1, 128, 4, 4), 128, Window((3, 3), (1, 1), SAME)),
    "strided": ((2, 16, 9, 9), 16, Window((3, 3), (2, 2), SAME)),
    "spread": ((1, 8, 9, 9), 8, Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2))),
    "groups": ((2, 8, 6, 6), 12, Window((3, 3), (1, 1), SAME, groups=4)),
    "by channel": ((2, 8, 6, 6), 8, Window((3, 3), (1, 1), SAME, groups=8)),
    "many tiles": ((2, 128, 28, 28), 128, Window((3, 3), (1, 1), SAME)),
    "uneven tiles": ((3, 4, 10, 7), 5, Window((3, 3), (1, 1), ((2, 0), (1, 2)))),
}
AFTER = [(False, False), (True, False), (False, True), (True, True)]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, wanted):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


def check(ops, case, relu, add, bias=True):
    (n, c, h, w), f, window = CASES[case]
    x, k = draw(n, c, h, w), draw(f, c // window.groups, *window.kernel, seed=1)
    b = draw(f, seed=2) if bias else None
    other = draw(n, f, *window._out_size(h, w), seed=3) if add else None
    before = [None if a is None else a.copy() for a in (x, k, b, other)]
    y64 = numpy_ops.conv2d(
        x.astype(np.float64),
        k.astype(np.float64),
        None if b is None else b.astype(np.float64),
        window,
    )
    y64 = y64 if other is None else y64 + other
    y64 = np.where(y64 > 0, y64, 0) if relu else y64
    close(ops.conv2d_constant(x, k, b, window, relu, other), y64)
    for a, saved in zip((x, k, b, other), before, strict=True):
        np.testing.assert_array_equal(a, saved)


@pytest.mark.parametrize(("relu", "add"), AFTER)
@pytest.mark.parametrize("case", CASES)
def test_every_ending(ops, case, relu, add):
    check(ops, case, relu, add)


@pytest.mark.parametrize("case", CASES)
def test_without_a_bias(ops, case):
    check(ops, case, relu=True, add=False, bias=False)


@pytest.mark.parametrize(("relu", "add"), AFTER)
def test_by_numpys_tiles(no_compiler, ops, chosen, relu, add):
    chosen.always = "numpy"
    check(ops, "many tiles", relu, add)
    assert chosen.found == ["numpy"]


@pytest.mark.parametrize(("relu", "add"), AFTER)
@pytest.mark.parametrize("case", CASES)
def test_numpy(case, relu, add):
    check(numpy_ops, case, relu, add)


class Tiles:
    """Chooses tiles wherever they are open."""

    version = 0

    def choose(self, ops, case, estimates):
        return "numpy" if "numpy" in estimates else "direct"


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
@pytest.mark.parametrize("case", CASES)
def test_two_threads(no_compiler, library_path, monkeypatch, case):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(2)
    ops = OneDnnOps(library_path, required=True)
    check(ops, case, relu=True, add=True)
    ops.chooser = Tiles()
    check(ops, case, relu=True, add=True)


def test_numpys_tiles_pay_where_pixels_and_channels_are_many(no_compiler, ops, monkeypatch):
    """They are one thread's, and not open at all where LLVM's are."""
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    *_, numpys = OneDnnOps.conv2d_constant.routes

    def estimate(n, size, channels, count=1):
        set_threads(count)
        shapes = (n, channels, size, size), (channels, channels, 3, 3)
        return numpys.estimate(ops, Case("constant", *shapes, Window((3, 3), (1, 1), SAME)))

    assert estimate(1, 56, 64) < 1
    assert estimate(2, 28, 128) < 1
    assert estimate(1, 7, 512) > 1
    assert estimate(1, 32, 16) > 1
    if threads.cores() > 1:
        assert estimate(2, 28, 128, 2) == 2 * estimate(2, 28, 128)
    monkeypatch.setattr(sys.modules["singanet.ops.onednn.conv"], "has_compiler", lambda: True)
    assert estimate(1, 56, 64) == NEVER


def test_double_precision_and_empty_batches_are_numpys(ops):
    window = Window((3, 3), (1, 1), SAME)
    x, k = draw(2, 4, 6, 6).astype(np.float64), draw(4, 4, 3, 3, seed=1).astype(np.float64)
    got = ops.conv2d_constant(x, k, None, window, relu=True)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, np.maximum(numpy_ops.conv2d(x, k, None, window), 0))
    assert ops.conv2d_constant(draw(0, 4, 6, 6), draw(4, 4, 3, 3), None, window).shape == (
        0,
        4,
        6,
        6,
    )


def test_a_convolution_is_shared_from_three_times_what_that_costs_on():
    module = sys.modules["singanet.ops.onednn.conv.direct"]
    weight = np.zeros((8, 4, 3, 3), np.float32)
    # 2 images of 30 pixels, a nanosecond a multiplication: 17,280 in all.
    outputs = (2, 5, 6, 8)
    for count, narrow, shared, expected in (
        (2, False, 5760.0, True),
        (2, False, 5761.0, False),
        (1, False, 1.0, False),
        (2, True, 2880.0, True),
        (2, True, 2881.0, False),
    ):
        speeds = BUILT_IN._replace(direct=1.0, narrow=0.5, shared=shared, distant=0.0)
        ops = SimpleNamespace(threads=count, narrow=narrow, speeds=lambda speeds=speeds: speeds)
        assert module._is_worth_threads(ops, outputs, weight) is expected
