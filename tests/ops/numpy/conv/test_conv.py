"""The convolution kernels: explicit loops, bands of rows, bounded scratch."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import linear, windows
from singanet.ops.numpy.conv.depthwise import gather
from singanet.ops.numpy.conv.im2col import scatter
from singanet.ops.window import Window

SAME = ((1, 1), (1, 1))
GEOMETRIES = [
    Window((3, 3), (1, 1), SAME),
    Window((3, 3), (2, 2), SAME),
    Window((1, 1), (1, 1), ((0, 0), (0, 0))),
    Window((1, 1), (2, 3), ((0, 0), (0, 0))),
    Window((2, 4), (3, 1), ((0, 1), (1, 2))),
    Window((3, 2), (1, 1), ((2, 2), (1, 1)), (2, 3)),
    Window((3, 3), (2, 2), ((3, 2), (2, 3)), (2, 2)),
    Window((2, 2), (1, 2), ((4, 4), (3, 3))),
    Window((2, 2), (5, 5), ((3, 3), (3, 3))),
]


def by_loops(x, weight, dy, window, groups):
    """Every product of the definition, one by one: y, dx and dw."""
    h, w = x.shape[2:]
    f, cg, kh, kw = weight.shape
    oh, ow = window._out_size(h, w)
    y, dx, dw = np.zeros((len(x), f, oh, ow)), np.zeros_like(x), np.zeros_like(weight)
    for o in range(f):
        group = o // (f // groups)
        for ci, a, b, i, j in np.ndindex(cg, kh, kw, oh, ow):
            p = i * window.stride[0] + a * window.dilation[0] - window.pads[0][0]
            q = j * window.stride[1] + b * window.dilation[1] - window.pads[1][0]
            if 0 <= p < h and 0 <= q < w:
                k = group * cg + ci
                y[:, o, i, j] += weight[o, ci, a, b] * x[:, k, p, q]
                dx[:, k, p, q] += weight[o, ci, a, b] * dy[:, o, i, j]
                dw[o, ci, a, b] += (x[:, k, p, q] * dy[:, o, i, j]).sum()
    return y, dx, dw


def case(window, channels, outputs, groups, size=(7, 6), n=3, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, channels, *size)).astype(dtype)
    weight = rng.standard_normal((outputs, channels // groups, *window.kernel)).astype(dtype)
    dy = rng.standard_normal((n, outputs, *window._out_size(*size))).astype(dtype)
    return x, weight, dy


@pytest.mark.parametrize("window", GEOMETRIES)
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(2, 3, 1), (4, 2, 2), (1, 9, 1), (8, 1, 1), (3, 6, 3)]
)
@pytest.mark.parametrize("scratch", [1, 1000, 1 << 21])
def test_equals_the_definition(window, channels, outputs, groups, scratch, monkeypatch):
    """Whatever the block: single rows, bands of a sample, several samples."""
    monkeypatch.setattr(windows, "SCRATCH_BYTES", scratch)
    x, weight, dy = case(window, channels, outputs, groups)
    y, dx, dw = by_loops(x, weight, dy, window, groups)
    bias, window = np.arange(outputs, dtype=np.float64), replace(window, groups=groups)
    close = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(
        ops.conv2d(x, weight, bias, window), y + bias[:, None, None], **close
    )
    np.testing.assert_allclose(ops.conv2d_backward_data(dy, weight, x.shape, window), dx, **close)
    np.testing.assert_allclose(
        ops.conv2d_backward_weights(x, dy, weight.shape, window), dw, **close
    )


@pytest.mark.parametrize("window", [w for w in GEOMETRIES if 1 in w.stride or 1 in w.dilation])
@pytest.mark.parametrize("groups", [1, 2])
def test_gathering_and_scattering_agree(window, groups):
    """Only one of them runs for given shapes, so both are called here by name."""
    x, weight, dy = case(window, 4, 6, groups)
    window = replace(window, groups=groups)
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    if not all(1 in axis for axis in axes):
        pytest.skip("strided and dilated along one axis: only scattering serves")
    np.testing.assert_allclose(
        gather(ops, dy, weight, x.shape, window),
        scatter(ops, dy, weight, x.shape, window),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("contiguous", [True, False])
def test_channel_sum(contiguous, rng):
    x = rng.standard_normal((3, 4, 5, 6)).astype(np.float32)
    dy = x if contiguous else x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    got = ops.channel_sum(dy)
    assert got.dtype == np.float32
    assert got.shape == (4,)
    np.testing.assert_allclose(got, x.astype(float).sum(axis=(0, 2, 3)), rtol=1e-5)


def peaks_beyond_result(x, weight, dy, window, groups):
    """Bytes that each kernel allocates at most, its result not counted."""
    window = replace(window, groups=groups)
    calls = {
        "forward": lambda: ops.conv2d(x, weight, None, window),
        "weights": lambda: ops.conv2d_backward_weights(x, dy, weight.shape, window),
        "data": lambda: ops.conv2d_backward_data(dy, weight, x.shape, window),
    }
    # The least of three, since now and then the interpreter enlarges a table of its own meanwhile.
    return {name: min(peak_beyond_result(call) for _ in range(3)) for name, call in calls.items()}


def peak_beyond_result(call):
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1] - result.nbytes
    finally:
        tracemalloc.stop()


LAYOUTS = {
    "channels first": lambda a: a,
    "channels last": lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "size", "groups"),
    [
        (16, 16, 1, 24, 1),
        (16, 16, 2, 24, 1),
        (3, 64, 2, 32, 1),
        (20, 50, 1, 12, 1),
        (32, 8, 1, 40, 1),
        (16, 16, 1, 24, 4),
        (16, 32, 1, 24, 16),
    ],
)
def test_scratch_is_bounded_whatever_the_batch(
    channels, outputs, stride, size, groups, layout, monkeypatch
):
    # So little that four samples fill it already.
    allowance = 1 << 16
    monkeypatch.setattr(windows, "SCRATCH_BYTES", allowance)
    # Each lane has as much, and sums of its own.
    monkeypatch.setattr(linear, "default_threads", lambda: 1)
    window = Window((3, 3), (stride, stride), SAME if size > 12 else ((0, 0), (0, 0)))
    scratch = {}
    for n in (4, 16):
        x, weight, dy = case(window, channels, outputs, groups, (size, size), n, np.float32)
        scratch[n] = peaks_beyond_result(
            LAYOUTS[layout](x), weight, LAYOUTS[layout](dy), window, groups
        )
    # Columns fill one allowance, or take one row of the outputs where that is more; padded rows,
    # products and the phases of a stride take another, and the weight is laid out anew.
    row = size * 9 * max(channels, outputs) * 4
    # Beside them what Python and NumPy hold for views.
    bound = 3 * max(allowance, row) + 4 * weight.nbytes + (1 << 15)
    for name in ("forward", "weights", "data"):
        assert scratch[16][name] < bound, scratch
        assert scratch[16][name] < 1.1 * scratch[4][name] + 16384, scratch
