"""Images in a layout of oneDNN's own, there and back: the convolution itself is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.costs import BUILT_IN, Case, Speeds, cache_size
from singanet.ops.kernel import NEVER
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.conv import blocked
from singanet.ops.window import Window

MINE = Speeds(0.01, 0.5, 0.2, 0.003, 0.002, 0.3, 0.5, 9000.0)


def draw(seed, *shape):
    made = kernel(seed, *shape)
    return made.transpose(0, 3, 1, 2)


def kernel(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 2),
    st.integers(0, 2**20),
)
def test_random_cases_give_numpys_numbers(library_path, n, c, f, size, stride, seed):
    ops = OneDnnOps(library_path, required=True)
    window = Window((size, size), (stride, stride), ((size // 2, 0), (0, size // 2)))
    x, weight, bias = draw(seed, n, 5, 4, c), kernel(seed + 1, f, c, size, size), kernel(seed, f)
    y = blocked.forward(ops, x, weight, bias, window)
    wanted = numpy_ops.conv2d(x, weight, bias, window)
    if y is not None:
        np.testing.assert_allclose(y, wanted, atol=1e-4)
    dx = blocked.data(ops, wanted, weight, x.shape, window)
    if dx is not None:
        exact = numpy_ops.conv2d_backward_data(wanted, weight, x.shape, window)
        np.testing.assert_allclose(dx, exact, atol=1e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_constants_with_what_follows_them(ops, relu, add):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    x, weight, bias = draw(1, 3, 4, 4, 24), kernel(2, 32, 24, 3, 3), kernel(3, 32)
    other = draw(4, 3, 4, 4, 32) if add else None
    made = blocked.constant(ops, x, weight, bias, window, relu=relu, add=other)
    wanted = numpy_ops.conv2d_constant(x, weight, bias, window, relu=relu, add=other)
    if add and made is None:
        return  # no kernel adds images of another layout: the direct route goes on
    np.testing.assert_allclose(made, wanted, atol=1e-4)


def case(n, size, channels, groups=1):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    shapes = (n, channels * groups, size, size), (channels * groups, channels, 3, 3)
    return Case("forward", *shapes, replace(window, groups=groups))


def test_it_is_for_several_small_images_and_weights_beyond_the_cache(ops, monkeypatch):
    large = int((cache_size() / 36) ** 0.5) + 1
    assert blocked.fits(ops, case(8, 4, large))
    assert not blocked.fits(ops, case(8, 8, large))
    assert not blocked.fits(ops, case(8, 4, large // 2))
    assert not blocked.fits(ops, case(8, 4, large, groups=2))
    one = Window((1, 1), (1, 1), ((0, 0), (0, 0)))
    pixels = Case("forward", (8, 9 * large, 4, 4), (large, 9 * large, 1, 1), one)
    assert not blocked.fits(ops, pixels), "a product over all images reads the weight once"
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: MINE)
    assert blocked.estimate(ops, case(8, 2, large)) < 1
    assert blocked.estimate(ops, case(8, 2, large)) < blocked.estimate(ops, case(8, 4, large))
    assert blocked.estimate(ops, case(1, 2, large)) == NEVER
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: BUILT_IN)
    assert blocked.estimate(ops, case(8, 2, large)) == NEVER
