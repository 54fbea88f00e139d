"""Batch normalisation of any number of channels: beside NumPy's kernels, whoever has which part."""

import ctypes
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from singanet.ops import numpy_ops
from singanet.ops.compiled import normalise
from singanet.ops.compiled.engine import compiled
from singanet.ops.compiled.sizes import BACKWARD, FORWARD, GROUP, rows_of
from singanet.ops.llvm.plans import shared

EPSILON = 1e-3
RELU = {False: np.nan, True: 0.0}


@cache
def function(kind):
    return compiled(getattr(normalise, kind)())


def bits(value):
    return int(np.float32(value).view(np.int32))


def called(kind, arrays, rows, room, numbers, counts, threads):
    """The calls on the arrays, those of a stage in any order: the last comes first."""
    scratch = np.full(rows.scratch(room) // 4, np.nan, np.float32)
    places = [array.ctypes.data for array in (*arrays, scratch)]
    for stage in shared((*rows, *numbers), counts, threads):
        for call in reversed(stage):
            record = (ctypes.c_int64 * (len(places) + len(call)))(*places, *call)
            function(kind).briefly(ctypes.addressof(record))


def among_nan(x):
    """A copy, with NaN before and after it."""
    room = np.full(x.size + 2 * GROUP, np.nan, np.float32)
    inside = room[GROUP:-GROUP].reshape(x.shape)
    inside[...] = x
    return inside


def forward(x, gamma, beta, relu, parts=1, threads=1, statistics=None):
    """y, mean, variance and inverse for x (pixels, channels)."""
    pixels, channels = x.shape
    rows = rows_of(pixels, channels)._replace(parts=parts)
    y = np.full((pixels + 1, channels), 7.0, np.float32)
    mean, var, inverse = np.full((3, channels + 1), 7.0, np.float32)
    counts = parts, 1, 1, parts
    if statistics is not None:
        mean[:-1], var[:-1] = statistics
        counts = 0, 0, 1, parts
    arrays = y, among_nan(x), among_nan(gamma), among_nan(beta), mean, var, inverse
    numbers = bits(EPSILON), bits(RELU[relu])
    called("forward", arrays, rows, FORWARD, numbers, counts, threads)
    for made in (y, mean, var, inverse):
        assert np.all(made[-1] == 7.0)
    return y[:-1], mean[:-1], var[:-1], inverse[:-1]


def backward(dy, x, gamma, beta, mean, inverse, fixed, relu, parts=1, threads=1):
    """dx, dgamma and dbeta."""
    pixels, channels = x.shape
    rows = rows_of(pixels, channels)._replace(parts=parts)
    dx = np.full((pixels + 1, channels), 7.0, np.float32)
    dgamma, dbeta = np.full((2, channels + 1), 7.0, np.float32)
    arrays = dx, dgamma, dbeta, *map(among_nan, (dy, x, gamma, beta, mean, inverse))
    counts = 1, parts, 1, parts
    numbers = int(fixed), bits(RELU[relu])
    called("backward", arrays, rows, BACKWARD, numbers, counts, threads)
    for made in (dx, dgamma, dbeta):
        assert np.all(made[-1] == 7.0)
    return dx[:-1], dgamma[:-1], dbeta[:-1]


def draw(channels, rows, tail, seed):
    """x and dy of so many rows and a part of one, gamma and beta."""
    rng = np.random.default_rng(seed)
    pixels = rows_of(10**6, channels).width // channels * rows
    pixels += int(tail * rows_of(10**6, channels).width) // channels
    x, dy = rng.standard_normal((2, pixels, channels)).astype(np.float32)
    return x, dy, *rng.standard_normal((2, channels)).astype(np.float32)


def close(found, wanted, scale):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * (1 + np.max(np.abs(scale))))


SIZES = (st.integers(1, 70), st.integers(1, 70), st.floats(0, 0.99), st.integers(0, 99))


@given(*SIZES, st.booleans(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_any_number_of_channels(channels, rows, tail, seed, relu, parts, threads, fixed):
    x, dy, gamma, beta = draw(channels, rows, tail, seed)
    parts = min(parts, rows)
    given = forward(x, gamma, beta, relu, parts, threads)
    if fixed:
        given = forward(x, gamma, beta, relu, parts, threads, given[1:3])
    y, mean, _, inverse = given
    wide = (a.astype(np.float64) for a in (x, gamma, beta))
    wanted = numpy_ops.batch_norm_train(*wide, EPSILON, relu)
    for one, other in zip(given, wanted, strict=False):
        close(one, other, other)
    found = backward(dy, x, gamma, beta, mean, inverse, fixed, relu, parts, threads)
    # Where y is near zero the two may differ in whether it is above.
    mask = [(y > 0).astype(np.float64)] if relu else []
    wide = (a.astype(np.float64) for a in (dy, x, gamma, mean, inverse))
    wanted = numpy_ops.batch_norm_backward(*wide, fixed, *mask)
    close(found[0], wanted[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        close(one, other, np.abs(dy).sum(0))


@given(*SIZES, st.integers(1, 5))
def test_threads_change_no_bit(channels, rows, tail, seed, parts):
    x, dy, gamma, beta = draw(channels, rows, tail, seed)
    parts = min(parts, rows)
    alone = forward(x, gamma, beta, True, parts)
    given = dy, x, gamma, beta, alone[1], alone[3], False, True, parts
    back = backward(*given)
    for threads in (2, 3, 7):
        for one, other in zip(alone, forward(x, gamma, beta, True, parts, threads), strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(back, backward(*given, threads), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("first", ["alike", "black"])
@pytest.mark.parametrize("channels", [5, 24, 64])
def test_statistics_far_from_zero(channels, first):
    rng = np.random.default_rng(0)
    x = (100 + 0.1 * rng.standard_normal((5000, channels))).astype(np.float32)
    if first == "black":
        x[:900] = 0
    one = np.ones(channels, np.float32)
    y, mean, var, _ = forward(x, one, one, False, parts=2)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=3e-7)
    np.testing.assert_allclose(var, exact.var(0), rtol=2e-6)
    scaled = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + EPSILON) + 1
    # As exact as the mean is in float32, of which half a unit is 4e-6.
    np.testing.assert_allclose(y, scaled, atol=1e-4)


def test_constant_channels_have_no_variance():
    x = np.full((700, 3), 0.1, np.float32)
    y, mean, var, _ = forward(x, np.ones(3), np.full(3, 0.5), False)
    np.testing.assert_array_equal(mean, x[0])
    np.testing.assert_array_equal(var, 0)
    np.testing.assert_array_equal(y, 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pixel", [0, 40, 699])
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_no_number_shows_in_its_channel_alone(value, pixel, relu):
    x, dy, gamma, beta = draw(10, 2, 0.9, 0)
    x, dy = (np.resize(a, (700, 10)) for a in (x, dy))
    x[pixel, 3] = value
    y, mean, var, inverse = forward(x, gamma, beta, relu, parts=2)
    assert np.isnan(y[pixel, 3])
    assert np.isnan(var[3])
    others = np.delete(np.arange(10), 3)
    assert np.isfinite(y[:, others]).all()
    assert np.isfinite(np.stack([mean, var, inverse])[:, others]).all()
    dx, dgamma, dbeta = backward(dy, x, gamma, beta, mean, inverse, False, relu, parts=2)
    assert np.isnan(dx[:, 3]).all()
    assert np.isnan(dgamma[3])
    assert np.isfinite(dx[:, others]).all()
    assert np.isfinite(np.stack([dgamma, dbeta])[:, others]).all()


@pytest.mark.parametrize("where", ["gamma", "beta", "mean", "var"])
def test_nan_of_a_vector_shows_after_the_relu(where):
    x, _, gamma, beta = draw(10, 2, 0.9, 0)
    vectors = {"gamma": gamma, "beta": beta, "mean": np.zeros(10), "var": np.ones(10)}
    vectors[where][7] = np.nan
    statistics = vectors["mean"], vectors["var"]
    y = forward(x, gamma, beta, True, statistics=statistics)[0]
    assert np.isnan(y[:, 7]).all()
    assert np.isfinite(np.delete(y, 7, 1)).all()


def test_fixed_statistics_keep_x_out_of_its_gradient():
    x, dy, gamma, beta = draw(10, 2, 0.9, 0)
    x[5, 3] = np.nan
    found = backward(dy, x, gamma, beta, beta, np.abs(gamma), True, False)
    np.testing.assert_allclose(found[0], dy * (gamma * np.abs(gamma)), rtol=1e-6)
    assert np.isnan(found[1][3])


@pytest.mark.parametrize("channels", [5, 24, 48])
def test_beside_pytorch(channels):
    torch = pytest.importorskip("torch")
    x, dy, gamma, beta = draw(channels, 40, 0.5, 0)
    given = [torch.from_numpy(a).requires_grad_() for a in (x, gamma, beta)]
    made = torch.relu(
        torch.nn.functional.batch_norm(given[0], None, None, *given[1:], True, 0, EPSILON)
    )
    made.backward(torch.from_numpy(dy))
    y, mean, _, inverse = forward(x, gamma, beta, True)
    np.testing.assert_allclose(y, made.detach().numpy(), atol=1e-5)
    dx, dgamma, dbeta = backward(dy, x, gamma, beta, mean, inverse, False, True)
    for found, tensor in zip((dx, dgamma, dbeta), given, strict=True):
        close(found, tensor.grad.numpy(), np.sqrt(len(x)) * 2)
