"""3×3 and 5×5 convolutions by tiles against sums over windows, and where they are taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.numpy import linear
from singanet.ops.numpy.conv import winograd
from singanet.ops.window import Window

PAD = st.integers(0, 4)
TAPS = st.sampled_from([3, 5])


def convolved(x, weight, window):
    """The definition: a term for each kernel position."""
    (top, bottom), (left, right) = window.pads
    full = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = weight.shape[2:]
    oh, ow = full.shape[2] - kh + 1, full.shape[3] - kw + 1
    return sum(
        np.einsum("nchw,fc->nfhw", full[:, :, a : a + oh, b : b + ow], weight[:, :, a, b])
        for a in range(kh)
        for b in range(kw)
    )


@settings(max_examples=40, deadline=None)
@given(
    TAPS, st.integers(1, 5), st.integers(1, 4), st.integers(1, 4),
    st.integers(5, 11), st.integers(5, 11), PAD, PAD, PAD, PAD, st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_all_three_kernels(taps, n, c, f, height, width, top, bottom, left, right, cores):
    rng = np.random.default_rng(0)
    top, bottom, left, right = (min(pad, taps - 1) for pad in (top, bottom, left, right))
    window = Window((taps, taps), (1, 1), ((top, bottom), (left, right)))
    x, weight = rng.standard_normal((n, c, height, width)), rng.standard_normal((f, c, taps, taps))
    bias = rng.standard_normal(f)
    wanted = convolved(x, weight, window)
    dy = rng.standard_normal(wanted.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LEAST", 1)
        patch.setattr(linear, "default_threads", lambda: cores)
        # A block of one sample.
        patch.setattr(winograd, "_MOST_BYTES", 1)
        y = winograd.conv2d(numpy_ops, x, weight, bias, window)
        dx = winograd.data(numpy_ops, dy, weight, x.shape, window)
        dw = winograd.weights(numpy_ops, x, dy, weight.shape, window)
    np.testing.assert_allclose(y, wanted + bias[:, None, None], atol=1e-12)
    # The gradients of a bilinear function, by its values.
    v, u = rng.standard_normal(x.shape), rng.standard_normal(weight.shape)
    np.testing.assert_allclose((dx * v).sum(), (dy * convolved(v, weight, window)).sum(), atol=1e-9)
    np.testing.assert_allclose((dw * u).sum(), (dy * convolved(x, u, window)).sum(), atol=1e-9)


@pytest.mark.parametrize("taps", [3, 5])
def test_rounding_of_float32(rng, taps):
    x = rng.standard_normal((2, 64, 16, 16)).astype(np.float32)
    weight = rng.standard_normal((64, 64, taps, taps)).astype(np.float32)
    window = Window((taps, taps), (1, 1), ((taps // 2, taps // 2),) * 2)
    wanted = convolved(x.astype(float), weight.astype(float), window)
    y = winograd.conv2d(numpy_ops, x, weight, None, window)
    assert y.dtype == np.float32
    assert np.abs(y - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("channels", "kernels", "size", "samples", "window", "expected"),
    [
        (64, 64, 28, 8, Window((3, 3), (1, 1), ((1, 1), (1, 1))), True),
        (16, 16, 28, 8, Window((3, 3), (1, 1), ((1, 1), (1, 1))), False),
        (512, 512, 2, 32, Window((3, 3), (1, 1), ((1, 1), (1, 1))), False),
        (64, 64, 28, 8, Window((3, 3), (2, 2), ((1, 1), (1, 1))), False),
        (64, 64, 28, 8, Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)), False),
        (64, 64, 28, 8, Window((3, 3), (1, 1), ((1, 3), (1, 1))), False),
        (64, 64, 28, 8, Window((5, 5), (1, 1), ((2, 2), (2, 2))), True),
        (3, 64, 28, 8, Window((5, 5), (1, 1), ((2, 2), (2, 2))), False),
        (64, 64, 28, 8, Window((5, 3), (1, 1), ((2, 2), (1, 1))), False),
        (64, 64, 28, 8, Window((7, 7), (1, 1), ((3, 3), (3, 3))), False),
        (64, 64, 28, 8, Window((3, 3), (1, 1), ((1, 1), (1, 1)), groups=2), False),
        (64, 64, 28, 0, Window((3, 3), (1, 1), ((1, 1), (1, 1))), False),
    ],
)
def test_where_tiles_pay(channels, kernels, size, samples, window, expected):
    x, weight = (
        (samples, channels, size, size),
        (kernels, channels // window.groups, *window.kernel),
    )
    assert winograd.pays(numpy_ops, x, weight, window) is expected
