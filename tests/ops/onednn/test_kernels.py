"""oneDNN's other kernels against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.interface import ACTIVATIONS, Prepared
from singanet.ops.onednn import attending
from singanet.ops.window import Window

WINDOWS = [
    Window((2, 2), (2, 2), ((0, 0), (0, 0))),
    Window((3, 3), (2, 2), ((1, 1), (1, 1))),
    Window((3, 2), (1, 3), ((1, 0), (0, 1))),
    Window((3, 3), (2, 3), ((0, 1), (1, 0)), ceil=True),
]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(values):
    return [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in values]


def flat(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [a for part in parts for a in (flat(part) if isinstance(part, tuple) else [part])]


def compare(ops, name, *arguments, rtol=1e-5):
    """The kernel gives what NumPy's gives in double precision; what that is."""
    got, wanted = getattr(ops, name)(*arguments), getattr(numpy_ops, name)(*wide(arguments))
    for a, b in zip(flat(got), flat(wanted), strict=True):
        if b is None:
            assert a is None
            continue
        assert a.shape == b.shape
        assert a.dtype == (np.float32 if b.dtype == np.float64 else b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(abs(b).max(), 1e-30))
    return got


@pytest.mark.parametrize("window", WINDOWS)
def test_pooling(ops, only_onednn, window):
    only_onednn("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
    x = draw(3, 5, 9, 8)
    y, where = compare(ops, "max_pool", x, window, True)
    compare(ops, "max_pool", x, window, False)
    dy = draw(*y.shape, seed=1)
    compare(ops, "avg_pool", x, window)
    compare(ops, "avg_pool_backward", dy, x.shape, window)
    if not window.ceil:
        compare(ops, "avg_pool", x, window, True)
        compare(ops, "avg_pool_backward", dy, x.shape, window, True)
    dx = ops.max_pool_backward(dy, where, x.shape, window)
    wanted = numpy_ops.max_pool_backward(dy.astype(np.float64), where, x.shape, window)
    np.testing.assert_allclose(dx, wanted, atol=1e-5)


def test_of_equal_values_the_first_is_noted(ops):
    x = np.zeros((2, 16, 6, 6), np.float32)
    for window in WINDOWS:
        wanted = numpy_ops.max_pool(x, window, True)[1]
        np.testing.assert_array_equal(ops.max_pool(x, window, True)[1], wanted)


@pytest.mark.parametrize("last", [False, True])
def test_nan_shows_in_its_sample_and_in_no_other(ops, last):
    x = draw(3, 16, 64, 64)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    x[1, 5, 60, 60] = np.nan
    x[2, 3, 7, 7] = 1e30  # whose square is no float32
    sound = np.delete(x, 1, axis=0)
    for window in WINDOWS:
        y, _ = ops.max_pool(x, window, True)
        assert np.isnan(y[1]).any()
        np.testing.assert_array_equal(
            np.delete(y, 1, axis=0), numpy_ops.max_pool(sound, window, False)[0]
        )
    y = ops.activation("relu", x)
    assert np.isnan(y[1]).any()
    np.testing.assert_array_equal(np.delete(y, 1, axis=0), np.maximum(sound, 0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_comes_through(ops, bad):
    x = draw(2, 16, 64, 64)
    x[0, :, 2:40:9] = bad
    for window in WINDOWS:
        y, where = ops.max_pool(x, window, True)
        wanted, noted = numpy_ops.max_pool(x, window, True)
        np.testing.assert_array_equal(y, np.maximum(wanted, np.finfo(np.float32).min))
        np.testing.assert_array_equal(where, noted)
    np.testing.assert_array_equal(ops.activation("relu", x), np.maximum(x, 0))


@pytest.mark.parametrize("shape", [(4, 16, 7, 5), (2, 48, 6, 6), (70, 16), (4, 20, 7, 5)])
def test_batch_norm(ops, shape):
    x, dy, (gamma, beta) = draw(*shape) + 3, draw(*shape, seed=1), draw(2, shape[1], seed=2)
    _, mean, _, inverse = compare(ops, "batch_norm_train", x, gamma, beta, 1e-3)
    var = abs(draw(shape[1], seed=3)) + 0.5
    compare(ops, "batch_norm", x, gamma, beta, mean, var, 1e-3)
    for fixed in (False, True):
        compare(ops, "batch_norm_backward", dy, x, gamma, mean, inverse, fixed)


@pytest.mark.parametrize("shape", [(4, 16, 7, 5), (2, 48, 6, 6), (70, 16), (4, 20, 7, 5)])
def test_batch_norm_with_relu(ops, shape):
    x, dy, (gamma, beta) = draw(*shape) + 3, draw(*shape, seed=1), draw(2, shape[1], seed=2)
    *got, mask = ops.batch_norm_train(x, gamma, beta, 1e-3, True)
    *wanted, exact = numpy_ops.batch_norm_train(*wide((x, gamma, beta)), 1e-3, True)
    np.testing.assert_array_equal(wanted[0] > 0, got[0] > 0)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max())
    _, mean, _, inverse = got
    back = ops.batch_norm_backward(dy, x, gamma, mean, inverse, False, mask)
    statistics = wanted[1], wanted[3]
    right = numpy_ops.batch_norm_backward(*wide((dy, x, gamma)), *statistics, False, exact)
    for a, b in zip(back, right, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max())
    var = abs(draw(shape[1], seed=3)) + 0.5
    y, inverse, mask = ops.batch_norm(x, gamma, beta, mean, var, 1e-3, True)
    given = wide((x, gamma, beta, mean, var))
    wanted = numpy_ops.batch_norm(*given, 1e-3, True)
    np.testing.assert_allclose(y, wanted[0], rtol=0, atol=1e-5 * abs(wanted[0]).max())
    back = ops.batch_norm_backward(dy, x, gamma, mean, inverse, True, mask)
    right = numpy_ops.batch_norm_backward(*wide((dy, x, gamma, mean)), wanted[1], True, wanted[2])
    for a, b in zip(back, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max())


def test_batch_norm_with_relu_keeps_a_bit_a_value(ops):
    x = draw(4, 16, 8, 8)
    mask = ops.batch_norm_train(x, draw(16), draw(16, seed=1), 1e-3, True)[-1]
    assert mask.nbytes in (x.size // 8, x.size)  # a byte each without AVX2


@pytest.mark.parametrize("where", ["x", "gamma", "beta"])
def test_batch_norm_with_relu_shows_nan(ops, where):
    given = {"x": draw(4, 16, 8, 8), "gamma": draw(16), "beta": draw(16, seed=1)}
    np.put(given[where], 1, np.nan)
    y = ops.batch_norm_train(*given.values(), 1e-3, True)[0]
    channel = 0 if where == "x" else 1
    assert np.isnan(y[:, channel]).any(axis=(1, 2)).all()
    assert not np.isnan(np.delete(y, channel, axis=1)).any()


def test_batch_norm_with_relu_shows_nan_of_its_sample(ops, only_onednn):
    only_onednn("batch_norm")
    x, (gamma, beta, mean), var = draw(4, 16, 8, 8), draw(3, 16, seed=1), np.ones(16, np.float32)
    x[2, 5, 3, 3] = np.nan
    y, _, mask = ops.batch_norm(x, gamma, beta, mean, var, 1e-3, True)
    np.testing.assert_array_equal(np.isnan(y).any(axis=(1, 2, 3)), [False, False, True, False])
    assert np.shares_memory(mask, y)


def test_batch_norm_is_onednns_for_whole_vectors(ops, only_onednn):
    only_onednn("batch_norm_train", "batch_norm", "batch_norm_backward")
    test_batch_norm(ops, (4, 16, 7, 5))


@pytest.mark.parametrize("shape", [(64, 33), (3, 512)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(ops, only_onednn, shape, affine):
    only_onednn("layer_norm", "layer_norm_backward")
    x, dy = draw(*shape) + 2, draw(*shape, seed=1)
    gamma, beta = draw(2, shape[1], seed=2) if affine else (None, None)
    got = ops.layer_norm(x, gamma, beta, 1e-4)
    wanted = numpy_ops.layer_norm(*wide((x, gamma, beta)), 1e-4)
    for a, b in zip(flat(got), flat(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    back = ops.layer_norm_backward(dy, x, gamma, got[1])
    exact = numpy_ops.layer_norm_backward(*wide((dy, x, gamma)), wanted[1])
    for a, b in zip(back, exact, strict=True):
        if not affine and b is None:
            assert a is None
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(128, 65), (4, 8, 9, 31)])
def test_softmax(ops, only_onednn, shape):
    only_onednn("softmax")
    x = 5 * draw(*shape)
    x.reshape(-1)[:2] = 1e30, -1e30
    y = compare(ops, "softmax", x)
    # Without AVX-512 oneDNN has no such kernel.
    rows = (x.size // shape[-1], shape[-1])
    if ops.runtime().plan(attending._backward, (rows,), x.size) is not None:
        only_onednn("softmax_backward")
    for axis in (-1, len(shape) - 1):
        compare(ops, "softmax_backward", draw(*shape, seed=1), y, axis)


@pytest.mark.parametrize("shape", [(1, 10), (3, 1), (2, 5, 7)])
def test_softmax_of_few_in_predictors(ops, only_onednn, shape):
    ops.prepared = Prepared()
    only_onednn("softmax")
    x = 5 * draw(*shape)
    compare(ops, "softmax", x)
    x.reshape(-1)[0] = np.nan
    bad = np.isnan(ops.softmax(x)).reshape(-1, shape[-1]).any(axis=1)
    assert bad.tolist() == [True] + [False] * (len(bad) - 1)


def test_softmax_along_another_axis(ops):
    compare(ops, "softmax", draw(64, 8, 32), 1)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("channels", [16, 20])
def test_lrn(ops, size, channels):
    x, dy = draw(3, channels, 8, 7), draw(3, channels, 8, 7, seed=1)
    compare(ops, "lrn", x, size, 0.3, 0.75, 2.0)
    compare(ops, "lrn_backward", dy, x, size, 0.3, 0.75, 2.0)


@pytest.mark.parametrize("mode", list(ACTIVATIONS)[:8])
@pytest.mark.parametrize("last", [False, True])
def test_activations(ops, only_onednn, mode, last):
    only_onednn("activation_backward", *(() if mode in ("elu", "softplus") else ("activation",)))
    x, dy = 3 * draw(4, 32, 32, 33), draw(4, 32, 32, 33, seed=1)
    if last:
        x = x.transpose(0, 3, 1, 2)
        dy = dy.reshape(x.shape)
    y = compare(ops, "activation", mode, x, 0.3)
    kept = y if ACTIVATIONS[mode] == "y" else x
    compare(ops, "activation_backward", mode, dy, kept, 0.3)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("orders", ["CC", "LL", "LC", "CL"])
def test_sums_of_two(ops, plans, relu, orders):
    arrays = [draw(4, 16, 32, 33), draw(4, 16, 32, 33, seed=1)]
    for k, order in enumerate(orders):
        if order == "L":
            last = np.ascontiguousarray(arrays[k].transpose(0, 2, 3, 1))
            arrays[k] = last.transpose(0, 3, 1, 2)
    total = arrays[0].astype(np.float64) + arrays[1]
    wanted = np.maximum(total, 0) if relu else total
    got = ops.combine("add", arrays, arrays[0].shape, relu)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert got.strides == arrays[0].strides
    assert plans() == (1, 0)
    for k in range(2):
        bad = [array.copy(order="K") for array in arrays]
        bad[k][2, 3, 4, 5] = np.nan
        samples = np.isnan(ops.combine("add", bad, bad[0].shape, relu)).any(axis=(1, 2, 3))
        np.testing.assert_array_equal(samples, [False, False, True, False])


def test_other_combinations_are_numpys(ops, plans):
    x, gate = draw(4, 16, 32, 33), draw(4, 16, 1, 1, seed=1)
    np.testing.assert_array_equal(
        ops.combine("add", [x, gate], x.shape, True), np.maximum(x + gate, 0)
    )
    np.testing.assert_array_equal(ops.combine("add", [x, x, x], x.shape), x + x + x)
    np.testing.assert_array_equal(ops.combine("multiply", [x, x], x.shape), x * x)
    assert plans() == (0, 0)


def test_images_are_laid_out_channels_last(ops, plans):
    x = draw(3, 20, 16, 17)
    np.testing.assert_array_equal(ops.channels_last(x), x.transpose(0, 2, 3, 1))
    assert plans() == (1, 0)
    already = draw(3, 16, 17, 20).transpose(0, 3, 1, 2)
    assert np.shares_memory(ops.channels_last(already), already)


def test_views_with_gaps(ops):
    x = draw(4, 32, 20, 40)[:, ::2, 1:, ::2]
    y, _ = compare(ops, "max_pool", x, WINDOWS[0], True)
    compare(ops, "activation", "gelu", x)
    compare(ops, "lrn", x, 5, 0.1, 0.75, 1.0)
    assert y.shape == (4, 16, 9, 10)
