"""oneDNN's convolutions against NumPy's in double precision, whose own tests use plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.onednn import OneDnnOps
from singanet.ops.window import Window

SAME, NONE = ((1, 1), (1, 1)), ((0, 0), (0, 0))
GEOMETRIES = [
    Window((3, 3), (1, 1), SAME),
    Window((3, 3), (2, 2), SAME),
    Window((1, 1), (2, 3), NONE),
    Window((2, 4), (3, 1), ((0, 1), (1, 2))),
    Window((3, 2), (1, 1), ((2, 2), (1, 1)), (2, 3)),
]
CHANNELS = [(16, 32, 1), (20, 50, 1), (6, 4, 2), (5, 3, 1), (1, 8, 1), (8, 8, 8), (4, 12, 4)]


def draw(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def channels_last(array):
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def close(got, wanted):
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def check_all(ops, window, channels, outputs, groups, size=(9, 8), n=3):
    window = replace(window, groups=groups)
    x, w = draw((n, channels, *size), 0), draw((outputs, channels // groups, *window.kernel), 1)
    b, dy = draw((outputs,), 2), draw((n, outputs, *window._out_size(*size)), 3)
    x64, w64, b64, dy64 = (a.astype(np.float64) for a in (x, w, b, dy))
    close(ops.conv2d(x, w, b, window), numpy_ops.conv2d(x64, w64, b64, window))
    for made, exact in ((x, x64), (channels_last(x), x64)):
        close(
            ops.conv2d_backward_weights(made, channels_last(dy), w.shape, window),
            numpy_ops.conv2d_backward_weights(exact, dy64, w.shape, window),
        )
    close(
        ops.conv2d_backward_data(dy, w, x.shape, window),
        numpy_ops.conv2d_backward_data(dy64, w64, x.shape, window),
    )


@pytest.mark.parametrize("window", GEOMETRIES)
@pytest.mark.parametrize(("channels", "outputs", "groups"), CHANNELS)
def test_equals_numpy(ops, plans, window, channels, outputs, groups):
    check_all(ops, window, channels, outputs, groups)
    made, not_offered = plans()
    assert made >= 2
    assert not_offered == 0


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * 2),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    per_group=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    groups=st.integers(1, 3),
)
def test_any_geometry(library_path, kernel, stride, pads, dilation, per_group, groups):
    """Where oneDNN has no kernel, as for windows that meet only padding, NumPy's stand in."""
    ops = OneDnnOps(library_path, required=True)
    window = Window(kernel, stride, pads, dilation)
    size = tuple(max(extent, 5) for extent in window.extent)
    check_all(ops, window, per_group[0] * groups, per_group[1] * groups, groups, size, n=2)


@pytest.mark.parametrize("multiple", [1, 2])
def test_depthwise(ops, plans, multiple):
    window = Window((3, 3), (2, 1), SAME)
    x, w, b = draw((2, 16, 7, 9), 0), draw((16, multiple, 3, 3), 1), draw((16 * multiple,), 2)
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    y = numpy_ops.depthwise_conv2d(x64, w64, b.astype(np.float64), window)
    close(ops.depthwise_conv2d(x, w, b, window), y)
    dy = draw(y.shape, 3)
    dy64 = dy.astype(np.float64)
    close(
        ops.depthwise_conv2d_backward_weights(x, dy, w.shape, window),
        numpy_ops.depthwise_conv2d_backward_weights(x64, dy64, w.shape, window),
    )
    close(
        ops.depthwise_conv2d_backward_data(dy, w, x.shape, window),
        numpy_ops.depthwise_conv2d_backward_data(dy64, w64, x.shape, window),
    )
    assert plans()[0] >= 3


def test_float64_and_empty_batches_are_numpys(ops, plans):
    window = GEOMETRIES[0]
    x, w = draw((2, 16, 8, 8), 0).astype(np.float64), draw((16, 16, 3, 3), 1).astype(np.float64)
    assert ops.conv2d(x, w, None, window).dtype == np.float64
    np.testing.assert_array_equal(
        ops.conv2d(x, w, None, window), numpy_ops.conv2d(x, w, None, window)
    )
    empty = np.empty((0, 16, 8, 8), np.float32)
    assert ops.conv2d(empty, draw((4, 16, 3, 3), 1), None, window).shape == (0, 4, 8, 8)
    dw = ops.conv2d_backward_weights(
        empty, np.empty((0, 4, 8, 8), np.float32), (4, 16, 3, 3), window
    )
    np.testing.assert_array_equal(dw, np.zeros((4, 16, 3, 3)))
    assert plans() == (0, 0)


def test_the_same_bits_every_time(ops):
    window = GEOMETRIES[0]
    x, w, dy = draw((4, 16, 16, 16), 0), draw((32, 16, 3, 3), 1), draw((4, 32, 16, 16), 2)
    first = ops.conv2d(x, w, None, window), ops.conv2d_backward_weights(x, dy, w.shape, window)
    for _ in range(5):
        np.testing.assert_array_equal(ops.conv2d(x.copy(), w, None, window), first[0])
        again = ops.conv2d_backward_weights(x, dy.copy(), w.shape, window)
        np.testing.assert_array_equal(again, first[1])


def test_arguments_stay_as_they_were(ops):
    window = GEOMETRIES[0]
    arrays = [draw((2, 16, 8, 8), 0), draw((16, 16, 3, 3), 1), draw((16,), 2)]
    copies = [array.copy() for array in arrays]
    ops.conv2d(*arrays, window)
    ops.conv2d_backward_data(arrays[0], arrays[1], (2, 16, 8, 8), window)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
