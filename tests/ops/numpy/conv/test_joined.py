"""Groups of few channels, several as one, against sums over windows of each group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy.conv import im2col
from singanet.ops.window import Window

SMALL = st.integers(1, 3)


def convolved(x, weight, window):
    """The definition, group by group."""
    full = np.pad(x, ((0, 0), (0, 0), *window.pads))
    seen = sliding_window_view(full, window.kernel, axis=(2, 3))
    seen = seen[:, :, :: window.stride[0], :: window.stride[1]]
    parts = zip(np.split(seen, window.groups, 1), np.split(weight, window.groups), strict=True)
    return np.concatenate([np.einsum("ncijab,fcab->nfij", s, w) for s, w in parts], 1)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([2, 3, 4, 6, 8]), st.integers(2, 6), st.integers(1, 6), st.integers(1, 3),
    SMALL, SMALL, SMALL, SMALL, st.integers(0, 2),
)  # fmt: skip
def test_all_three_kernels(groups, cg, fg, n, high, wide, down, across, pad):
    rng = np.random.default_rng(0)
    window = Window((high, wide), (down, across), ((pad, 1), (1, pad)), groups=groups)
    x = rng.standard_normal((n, groups * cg, 5, 6))
    weight = rng.standard_normal((groups * fg, cg, high, wide))
    bias = rng.standard_normal(len(weight))
    wanted = convolved(x, weight, window)
    dy = rng.standard_normal(wanted.shape)
    y = ops.conv2d(x, weight, bias, window)
    np.testing.assert_allclose(y, wanted + bias[:, None, None], atol=1e-12)
    # The gradients of a bilinear function, by its values.
    dx = ops.conv2d_backward_data(dy, weight, x.shape, window)
    dw = ops.conv2d_backward_weights(x, dy, weight.shape, window)
    v, u = rng.standard_normal(x.shape), rng.standard_normal(weight.shape)
    terms = (dx * v).sum(), (dy * convolved(v, weight, window)).sum()
    np.testing.assert_allclose(*terms, atol=1e-10)
    terms = (dw * u).sum(), (dy * convolved(x, u, window)).sum()
    np.testing.assert_allclose(*terms, atol=1e-10)


@pytest.mark.parametrize(
    ("groups", "channels", "kernels", "expected"),
    [(32, 4, 4, 4), (32, 2, 2, 8), (32, 2, 8, 2), (8, 8, 8, 2), (4, 16, 16, 1), (4, 2, 2, 4),
     (7, 4, 4, 1), (2, 3, 20, 1)],
)  # fmt: skip
def test_how_many_make_one(groups, channels, kernels, expected):
    assert im2col.joined(groups, (groups * kernels, channels, 3, 3)) == expected


def test_groups_are_no_wider_than_what_is_multiplied_at_once():
    """Larger groups stay by themselves: what one of them sees, no other does."""
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), groups=2)
    x, weight = np.ones((2, 40, 6, 6), np.float32), np.ones((40, 20, 3, 3), np.float32)
    x[:, 0] = np.nan
    y = ops.conv2d(x, weight, None, window)
    assert np.isnan(y[:, :20]).all(axis=(0, 1)).any()
    assert not np.isnan(y[:, 20:]).any()
