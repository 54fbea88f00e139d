"""Kernels whose samples are shared among lanes: the same sums, whatever the number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops, threads
from singanet.ops.numpy import linear
from singanet.ops.window import Window

WINDOWS = {
    "narrow": (4, 8, Window((3, 3), (1, 1), ((1, 1), (1, 1)))),
    "columns": (6, 32, Window((3, 3), (1, 1), ((1, 1), (1, 1)))),
    "strided": (6, 20, Window((3, 3), (2, 2), ((1, 1), (1, 1)), groups=2)),
    "scattered": (4, 6, Window((2, 3), (3, 2), ((0, 1), (1, 0)), (2, 2))),
    "depthwise": (6, 12, Window((3, 3), (1, 1), ((1, 1), (1, 1)), groups=6)),
}


@pytest.fixture
def several(monkeypatch):
    """Set how many lanes there are, however little work there is."""
    monkeypatch.setattr(linear, "LEAST", 1)
    return lambda count: monkeypatch.setattr(linear, "default_threads", lambda: count)


def kernels(kind, samples, rng):
    channels, outputs, window = WINDOWS[kind]
    x = rng.standard_normal((samples, channels, 9, 8))
    weight = rng.standard_normal((outputs, channels // window.groups, *window.kernel))
    y = numpy_ops.conv2d(x, weight, rng.standard_normal(outputs), window)
    dy = rng.standard_normal(y.shape)
    return (
        y,
        numpy_ops.conv2d_backward_weights(x, dy, weight.shape, window),
        numpy_ops.conv2d_backward_data(dy, weight, x.shape, window),
    )


@pytest.mark.parametrize("samples", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", WINDOWS)
def test_lanes_change_nothing_but_rounding(several, kind, samples):
    several(1)
    wanted = kernels(kind, samples, np.random.default_rng(0))
    for count in (2, 3):
        several(count)
        found = kernels(kind, samples, np.random.default_rng(0))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_parts_cover_every_sample_once():
    for samples in range(9):
        for count in range(1, 6):
            every = [k for part in linear.parts(samples, count) for k in range(samples)[part]]
            assert every == list(range(samples))


def test_little_work_and_other_arrays_than_numpys_stay_in_one_lane(several):
    several(4)
    assert numpy_ops.lane_count(8, 1) == 4
    assert numpy_ops.lane_count(3, 1) == 3
    assert numpy_ops.lane_count(8, 0) == 1
    assert list(numpy_ops.lanes(8, 0)) == [slice(0, 8)]


def test_threads_are_those_that_were_set(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    threads.set_threads(1)
    assert numpy_ops.lane_count(8, linear.LEAST) == 1
    assert numpy_ops.lane_count(8, linear.LEAST - 1) == 1


def normalised(samples, rng):
    x, dy = rng.standard_normal((2, samples, 6, 9, 8)) + 3.0
    gamma, beta = rng.standard_normal((2, 6))
    y, mean, var, inverse = numpy_ops.batch_norm_train(x, gamma, beta, 1e-5)
    return y, mean, var, *numpy_ops.batch_norm_backward(dy, x, gamma, mean, inverse, False)


def pooled(samples, rng):
    x, window = rng.standard_normal((samples, 6, 9, 8)), Window((3, 3), (2, 2), ((1, 1), (0, 1)))
    y, where = numpy_ops.max_pool(x, window, True)
    means = numpy_ops.avg_pool(x, window)
    dy = rng.standard_normal(y.shape)
    back = numpy_ops.max_pool_backward(dy, where, x.shape, window)
    return y, means, back, numpy_ops.avg_pool_backward(dy, x.shape, window)


def multiplied(samples, rng):
    a, b, c = (rng.standard_normal(shape) for shape in ((samples, 7), (7, 3), (3, samples, 7)))
    stacks = numpy_ops.matmul(c, c.swapaxes(1, 2))
    return numpy_ops.matmul(a, b), numpy_ops.matmul(a.T, a), numpy_ops.affine(a, b, b[0]), stacks


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("made", [normalised, pooled, multiplied])
def test_so_it_is_with_all_that_is_cut(several, made, samples):
    several(1)
    wanted = made(samples, np.random.default_rng(0))
    for count in (2, 3):
        several(count)
        for one, other in zip(made(samples, np.random.default_rng(0)), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@given(
    rows=st.integers(1, 9),
    inner=st.integers(1, 9),
    columns=st.integers(1, 9),
    cores=st.sampled_from([1, 2, 3]),
)
def test_products_in_lanes_are_numpys(rows, inner, columns, cores):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    room = np.empty((rows, columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LEAST", 1)
        patch.setattr(linear, "default_threads", lambda: cores)
        made = numpy_ops.matmul(a, b, out=room)
        assert made is room
        np.testing.assert_allclose(numpy_ops.matmul(a, b), a @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(room, a @ b, rtol=1e-12, atol=1e-12)
